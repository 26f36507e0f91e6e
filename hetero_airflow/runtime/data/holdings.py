"""What the cache folder of this host holds, as its agent or its scheduler reports it.

A folder of a store counts with the bytes of all its objects that are cached, up to the bucket. Nobody here knows how
many objects it has in the store.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from pathlib import Path

from hetero_airflow.model.host_data import MAX_HELD, NAME_DIGITS, HostData, held_name
from hetero_airflow.runtime.data.counting import read_counts
from hetero_airflow.runtime.data.folder import OBJECTS, Entry, entries_of

LOOKED_AT = 100
"""Objects at which one look ends: 250 take 15 to 60 ms (of 10,000 objects, 2 busy cores, November 2026)."""

_NEWEST_OF_PART = 8
"""Digests spread evenly: of the 200 objects that were used last, one of 256 parts has more with a chance below 1e-4."""

_PARTS = [f"{number:02x}" for number in range(256)]


@dataclass(frozen=True, slots=True)
class _CachedObject:
    size_bytes: int
    used: float
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
        """First two digits → time of last use, digest and size of the objects that were used last."""
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
            for directory in (self._root / OBJECTS / part).iterdir():
                entry = max(entries_of(directory), key=lambda entry: entry.used, default=None)
                if entry is not None:
                    known = before.get(directory.name)
                    folders = tuple(_folder_names(entry)) if known is None else known.folders
                    after[directory.name] = _CachedObject(entry.size_bytes, entry.used, folders)
        for sign, objects in ((-1, before), (1, after)):
            for cached in objects.values():
                self._count(cached, sign)
        self._objects[part] = after
        rows = ((cached.used, digest, cached.size_bytes) for digest, cached in after.items())
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
        held |= {digest[:NAME_DIGITS]: size_bytes for _, digest, size_bytes in objects}
        return dict(sorted(held.items()))


def _folder_names(entry: Entry) -> Iterator[str]:
    """The names of the folders that an object is in, up to its bucket."""
    scheme, _, path = (entry.url or "").partition("://")
    parts = path.split("/")[:-1]
    for number in range(len(parts)):
        yield held_name(f"{scheme}://{'/'.join(parts[: number + 1])}/")
