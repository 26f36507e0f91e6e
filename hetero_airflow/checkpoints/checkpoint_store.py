"""The port of a checkpoint store: objects under keys. Small objects are replaced by compare-and-swap."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hetero_airflow.errors import InvalidCheckpoint, shorten


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A small object, with its version at the time of the read."""

    content: bytes
    version: str
    """Differs for each content that was ever written there; `CheckpointStore.replace` compares it."""


class CheckpointStore(Protocol):
    """Keeps objects under keys such as ``dag/task/run/-1/index.json``; a key is checked by `keys.check_key`.

    :raises CheckpointStoreUnavailable: (every method) the store does not answer, is full, or refuses access
    :raises InvalidCheckpoint: (every method) a key outside the store, or that is no plain object
    """

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """A whole small object; None if there is none.

        :raises InvalidCheckpoint: it has more than `at_most` bytes
        """

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """Write a small object if it still has the version that was read (None: if it does not exist); all or nothing.

        Returns the new version. None: another writer was first, and its content stays.
        """

    def put(self, key: str, source: Path) -> None:
        """Store a file, durably and whole, under a key that is written once."""

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """Copy an object into a new file.

        :raises InvalidCheckpoint: there is none, it has more than `at_most` bytes, or the file exists already (which
            stays as it is). A new file is removed again on any error.
        """

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """Delete the garbage folders directly under a prefix, and yield the name of each one after its deletion.

        `is_garbage` gets the folder's name and the seconds since the last write in it. Only this prefix is listed.
        Nothing happens until the iterator is used.
        """


def check_size(key: str, size_bytes: int, at_most: int) -> None:
    """See that an object is not larger than expected.

    :raises InvalidCheckpoint: it is; `size_bytes` may be just `at_most` + 1 if no more was read
    """
    if size_bytes > at_most:
        raise InvalidCheckpoint(
            f"to read at most {at_most} bytes of {shorten(key)}",
            found="more" if size_bytes == at_most + 1 else f"{size_bytes} bytes",
            remedy="Another program wrote there, or the manifest is wrong: remove the object",
        )


def missing_object(asked: str) -> InvalidCheckpoint:
    """The error for an object that does not exist."""
    return InvalidCheckpoint(asked, found="nothing there", remedy="Look for the checkpoint that is named")


def existing_file(asked: str) -> InvalidCheckpoint:
    """The error for a target file that exists already."""
    return InvalidCheckpoint(asked, found="a file in its place", remedy="Nothing was overwritten: use a new folder")
