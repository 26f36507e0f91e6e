"""The port of a checkpoint store: objects under keys, one of which can be replaced only by who has read it last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """A small object as it was read."""

    content: bytes
    version: str
    """Another one for each content that was ever written there: what `CheckpointStore.replace` compares."""


class CheckpointStore(Protocol):
    """Keeps objects under keys such as ``dag/task/run/-1/index.json``; a key is checked by `names.check_key`.

    :raises CheckpointStoreUnavailable: (every method) the store does not answer, is full, or refuses us, after retries
    :raises InvalidCheckpoint: (every method) a key that leaves the store, or that is no plain object
    """

    def read(self, key: str, *, at_most: int) -> Found | None:
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

    def fetch(self, key: str, target: Path) -> None:
        """Bring an object into a new file.

        :raises InvalidCheckpoint: there is none
        """
        ...

    def sweep(self, prefix: str, keep: frozenset[str], older_than_s: float) -> Iterator[str]:
        """Delete the folders right under a prefix that are not to be kept and in which nothing was written for so
        long; their keys. Lists that prefix only."""
        ...
