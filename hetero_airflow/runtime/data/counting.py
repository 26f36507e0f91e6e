"""Counts what the processes of a host find in its cache folder, and what they read from stores.

A process adds its sums to those of the host every few seconds, and at its end. A process that is killed loses what it
has not added. The host's sums stay when their processes end, and go with the folder.
"""

import atexit
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

from pydantic import ValidationError

from hetero_airflow.model.host_data import CacheCounts
from hetero_airflow.runtime.data.folder import LOCKS, locked

COUNTS = "counts"
WRITE_EVERY_S = 5.0

_NOTHING = CacheCounts()


class CacheCounter:
    """Counts for any number of threads of one process.

    :param root: the cache folder; None: what is counted is kept nowhere
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._new = _NOTHING
        self._written_at = time.monotonic()
        self._counted: set[Path] = set()
        self._reads = 0
        self._reading_since = 0.0
        # As in `ScratchFolder`: not every process runs what is registered with atexit, and none that of its parent.
        atexit.register(Finalize(None, self.write, exitpriority=1))

    def note_hit(self, path: Path, size_bytes: int) -> None:
        """A content was in the folder. It counts once, and not if this process itself has read it."""
        with self._lock:
            if path in self._counted:
                return
            self._counted.add(path)
            self._add(hits=1, saved_bytes=size_bytes)
        self._write_if_due()

    def note_read(self, path: Path) -> None:
        """A content that this process has read is in the folder now."""
        with self._lock:
            self._counted.add(path)

    @contextlib.contextmanager
    def reading(self, size_bytes: int) -> Iterator[None]:
        """While it is entered, a content is read from a store. One that can't be read does not count."""
        with self._lock:
            if not self._reads:
                self._reading_since = time.monotonic()
            self._reads += 1
        is_read = False
        try:
            yield
            is_read = True
        finally:
            with self._lock:
                self._reads -= 1
                now = time.monotonic()
                if is_read:
                    self._add(misses=1, read_bytes=size_bytes, read_s=now - self._reading_since)
                self._reading_since = now
        self._write_if_due()

    def write(self) -> None:
        """Add what is new to the sums of the host. May be called twice; blocks for one second at most."""
        with self._lock:
            new, self._new, self._written_at = self._new, _NOTHING, time.monotonic()
        if self._root is None or new == _NOTHING or _add_to_host(self._root, new):
            return
        with self._lock:
            self._add(**new.model_dump())

    def _write_if_due(self) -> None:
        if time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self.write()

    def _add(self, **counts: float) -> None:
        self._new = self._new.model_copy(update={name: getattr(self._new, name) + n for name, n in counts.items()})


def read_counts(root: Path) -> CacheCounts:
    """The sums of the host; nothing if there are none, or they can't be read."""
    try:
        return CacheCounts.model_validate_json((root / COUNTS).read_bytes())
    except (OSError, ValidationError):
        return _NOTHING


def _add_to_host(root: Path, new: CacheCounts) -> bool:
    """Whether the folder has taken it."""
    with contextlib.suppress(OSError), locked(root / LOCKS / COUNTS, fcntl.LOCK_EX, 1.0) as is_alone:
        if not is_alone:
            return False
        before = read_counts(root)
        sums = {name: getattr(before, name) + getattr(new, name) for name in CacheCounts.model_fields}
        if sums["read_bytes"]:
            sums["saved_s"] += new.saved_bytes * sums["read_s"] / sums["read_bytes"]
        file = root / f"{COUNTS}~"
        file.write_text(CacheCounts(**sums).model_dump_json())
        os.replace(file, root / COUNTS)
        return True
    return False
