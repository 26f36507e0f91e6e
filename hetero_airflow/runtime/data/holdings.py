"""What the cache folder of this host holds, as its agent or its scheduler reports it.

A folder of a store counts with the bytes of all its objects that are cached, up to the bucket. Nobody here knows how
many objects it has in the store.
"""

import logging
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, islice
from pathlib import Path

from hetero_airflow.model.host_data import MAX_HELD, HostData, held_name
from hetero_airflow.runtime.data.counting import read_counts
from hetero_airflow.runtime.data.folder import OBJECTS, entries_of
from hetero_airflow.runtime.data.zstd import stored_url

LOOKED_AT = 100
"""Objects at which one look ends: 250 take 15 to 60 ms (of 10,000 objects, 2 busy cores, November 2026)."""

_NEWEST_OF_PART = 8
"""Digests spread evenly: of the 200 objects that were used last, one of 256 parts has more with a chance below 1e-4."""

_MOST_OF_PART = 400
"""Of a folder with more than about 100,000 objects, a part is followed."""

_PARTS = [f"{number:02x}" for number in range(256)]
_MOST_BYTES = 1 << 40
"""No object is larger: a damaged name can say anything."""

log = logging.getLogger(__name__)


class HoldingsWatch:
    """Looks at the cache folder of this host beside its caller, which no slow disk delays.

    :param root: need not exist
    """

    def __init__(self, root: Path) -> None:
        self._holdings = Holdings(root)
        self._looking: threading.Thread | None = None
        self._data = HostData()

    def data(self) -> HostData:
        """What the last look has found. Begins the next one, unless one is going on."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, name="data-holdings", daemon=True)
            self._looking.start()
        return self._data

    def _look(self) -> None:
        try:
            self._data = self._holdings.look()
        except Exception:
            log.exception("What the data cache holds can't be found out. The last report is kept.")


@dataclass(frozen=True, slots=True)
class _CachedObject:
    size_bytes: int
    used: float
    name: str
    folders: tuple[str, ...]
    """The names of the folders that it is in."""


class Holdings:
    """Follows a cache folder in small looks. A small one is known after each look, a large one after several.

    :param root: need not exist
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._objects: dict[str, dict[str, _CachedObject]] = {}
        """First two digits → digest of the URL → the content that was used last."""
        self._newest: dict[str, list[tuple[float, str, int]]] = {}
        """First two digits → time of last use, name and size of the objects that were used last."""
        self._folder_bytes: Counter[str] = Counter()
        self._folder_used: dict[str, float] = {}
        self._next = 0

    def look(self) -> HostData:
        """What is known after another look."""
        seen = 0
        for _ in _PARTS:
            seen += self._look_at(_PARTS[self._next])
            self._next = (self._next + 1) % len(_PARTS)
            if seen >= LOOKED_AT:
                break
        return HostData(held=self._held(), counts=read_counts(self._root))

    def _look_at(self, part: str) -> int:
        """Take in one part of the folder; the number of its objects."""
        before = self._objects.get(part, {})
        after: dict[str, _CachedObject] = {}
        with suppress(OSError):
            for directory in islice((self._root / OBJECTS / part).iterdir(), _MOST_OF_PART):
                entry = max(entries_of(directory), key=lambda entry: entry.used, default=None)
                known = before.get(directory.name)
                names = (known.name, *known.folders) if known else _names(entry.url) if entry and entry.url else ()
                if entry is not None and names:
                    size_bytes = min(entry.size_bytes, _MOST_BYTES)
                    after[directory.name] = _CachedObject(size_bytes, entry.used, names[0], names[1:])
        for sign, objects in ((-1, before), (1, after)):
            for cached in objects.values():
                self._count(cached, sign)
        self._objects[part] = after
        rows = ((cached.used, cached.name, cached.size_bytes) for cached in after.values())
        self._newest[part] = nlargest(_NEWEST_OF_PART, rows)
        return len(after)

    def _count(self, cached: _CachedObject, sign: int) -> None:
        for name in cached.folders:
            self._folder_bytes[name] += sign * cached.size_bytes
            self._folder_used[name] = max(self._folder_used.get(name, 0.0), cached.used)

    def _held(self) -> dict[str, int]:
        """The folders and objects that were used last, half of each if there are many, ordered by name."""
        for name in [name for name, size_bytes in self._folder_bytes.items() if not size_bytes]:
            del self._folder_bytes[name], self._folder_used[name]
        folders = nlargest(MAX_HELD // 2, self._folder_bytes, key=lambda name: (self._folder_used[name], name))
        objects = nlargest(MAX_HELD - len(folders), chain.from_iterable(self._newest.values()))
        held = {name: self._folder_bytes[name] for name in folders}
        held |= {name: size_bytes for _, name, size_bytes in objects}
        return dict(sorted(held.items()))


def _names(url: str) -> tuple[str, ...]:
    """The name of an object, and the names of the folders that it is in, up to its bucket."""
    stored = stored_url(url)
    scheme, _, path = stored.partition("://")
    parts = path.split("/")[:-1]
    folders = (f"{scheme}://{'/'.join(parts[: number + 1])}/" for number in range(len(parts)))
    return held_name(stored), *(sys.intern(held_name(folder)) for folder in folders)
