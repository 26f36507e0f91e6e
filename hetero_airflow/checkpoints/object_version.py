"""The contents that an object of a store has had: which is there now, and reading one of them and no other."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One content of an object."""

    key: str
    """From the root of the bucket or container."""
    etag: str
    """As HTTP writes it, with quotes. Another content has another one."""
    size_bytes: int


class ObjectChanged(Exception):
    """The object has another content now, or is gone."""


class VersionedObjects(Protocol):
    """The objects of one bucket or container, for any number of threads.

    :raises CheckpointStoreUnavailable: (every method) the store does not answer or refuses access
    """

    lists_from_any_key: bool
    """Whether `versions` sends no more requests if it begins in the middle."""

    def version(self, key: str) -> ObjectVersion | None:
        """The present one; None if there is no object."""

    def versions(self, folder: str, after: str = "") -> Iterator[ObjectVersion]:
        """The present ones of all objects whose keys begin with ``folder/`` and come after a key, in order."""

    def read_range(self, version: ObjectVersion, first: int, end: int) -> bytes:
        """The bytes from `first` to before `end` of one content.

        :raises ObjectChanged: it is no longer there
        """

    def upload(self, key: str, source: Path) -> ObjectVersion | None:
        """Write a file as the content of an object, whole or not at all. None: another content came right after it."""


def quoted(etag: str) -> str:
    """The ETag as HTTP writes it; Azure's listings leave the quotes out.

    >>> quoted("0x8D"), quoted('"0x8D"'), quoted('W/"1"')
    ('"0x8D"', '"0x8D"', 'W/"1"')
    """
    return etag if etag.endswith('"') else f'"{etag}"'
