"""One bucket as this process reads it: what is there, asked for once; and whole objects, read in parts at a time."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from hetero_airflow.checkpoints.object_version import ObjectChanged, ObjectVersion, VersionedObjects
from hetero_airflow.errors import CheckpointStoreUnavailable

PART_BYTES = 8 << 20
CONNECTIONS = 16
"""Requests at once for the parts of large objects, of one process."""

_LISTED = 1000


class Bucket:
    """The objects of one bucket.

    Asking for an object asks for those after it in its folder, too: one listing costs as much as one question. So a
    process that reads a folder of small objects sends one request for a thousand of them.
    """

    def __init__(self, objects: VersionedObjects) -> None:
        self._objects = objects
        self._known: dict[str, ObjectVersion] = {}
        self._is_listed: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._parts = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="data")

    def version(self, key: str, *, is_fresh: bool = False) -> ObjectVersion | None:
        """The content of an object now, or as it was when this process first asked.

        :param is_fresh: ask again
        """
        with self._lock:  # others wait for the listing that may answer them, too
            if is_fresh:
                self._known.pop(key, None)
            elif key not in self._known:
                self._look_around(key)
            known = self._known.get(key)
        if known is None and (known := self._objects.version(key)):
            with self._lock:
                known = self._known.setdefault(key, known)
        return known

    def folder(self, folder: str) -> Iterator[ObjectVersion]:
        """The contents of all objects of a folder now."""
        for version in self._objects.versions(folder):
            with self._lock:
                self._known[version.key] = version
            yield version

    def upload(self, key: str, file: Path) -> ObjectVersion | None:
        """Write a file as the content of an object; None if another content came right after it."""
        version = self._objects.upload(key, file)
        with self._lock:
            self._known.pop(key, None)
            if version:
                self._known[key] = version
        return version

    def download(self, version: ObjectVersion, file: Path) -> None:
        """Write one content of an object to a new file.

        :raises ObjectChanged: the object has another content meanwhile
        """
        size = version.size_bytes
        if size <= PART_BYTES:
            content = self._objects.read_range(version, 0, size) if size else b""
            _write(file, content)
            return
        with file.open("xb") as target:
            os.posix_fallocate(target.fileno(), 0, size)  # a full disk is noticed before anything is read
            parts = [(first, min(first + PART_BYTES, size)) for first in range(0, size, PART_BYTES)]
            for _ in self._parts.map(lambda part: self._copy(version, part, target.fileno()), parts):
                pass
            os.fsync(target.fileno())

    def _copy(self, version: ObjectVersion, part: tuple[int, int], target: int) -> None:
        first, end = part
        content = memoryview(self._objects.read_range(version, first, end))
        if len(content) != end - first:
            raise ObjectChanged
        while content:
            written = os.pwrite(target, content, first)
            content, first = content[written:], first + written

    def _look_around(self, key: str) -> None:
        folder, from_any = key.rpartition("/")[0], self._objects.lists_from_any_key
        if self._is_listed.get(folder):
            return
        self._is_listed[folder] = not from_any
        try:
            for version in islice(self._objects.versions(folder, key[:-1] if from_any else ""), _LISTED):
                self._known.setdefault(version.key, version)
        except CheckpointStoreUnavailable:  # no right to list, or a key of another program that can't be read
            self._is_listed[folder] = True


def _write(file: Path, content: bytes) -> None:
    with file.open("xb") as target:
        target.write(content)
        target.flush()
        os.fsync(target.fileno())
