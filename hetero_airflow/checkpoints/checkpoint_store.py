"""The port of a checkpoint store: objects under keys, one of which can be replaced only by who has read it last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A small object as it was read."""

    content: bytes
    version: str
    """Another one for each content that was ever written there: what `CheckpointStore.replace` compares."""


class CheckpointStore(Protocol):
    """Keeps objects under keys such as ``dag/task/run/-1/index.json``; a key is checked by `names.check_key`.

    :raises CheckpointStoreUnavailable: (every method) the store does not answer, is full, or refuses us, after retries
    :raises InvalidCheckpoint: (every method) a key that leaves the store, or that is no plain object
    """

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """A small object whole; None if there is none.

        :raises InvalidCheckpoint: it has more than `at_most` bytes
        """
        ...

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """Write a small object if it is still the version that was read (None: if there is none yet); all or nothing.

        Returns its new version, or None if somebody else wrote there meanwhile, whose content then stays.
        """
        ...

    def put(self, key: str, source: Path) -> None:
        """Keep a file, durably and whole, under a key that is written once."""
        ...

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """Bring an object into a new file.

        :raises InvalidCheckpoint: there is none, it has more than `at_most` bytes, or the file is there already, which
            stays as it is; otherwise nothing of it is left
        """
        ...

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """Delete the folders right under a prefix that are garbage; the names of those that are gone, as it goes on.

        `is_garbage` is asked with the folder's name and the seconds since something was last written in it. Lists
        that prefix only. Nothing happens until the iterator is used.
        """
        ...
