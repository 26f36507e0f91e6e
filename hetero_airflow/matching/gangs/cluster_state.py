"""Workers in their states, as far as gangs look at them: as they are, and as they would be if nothing were leased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hetero_airflow.matching.matcher import Matcher, OccupancyState
from hetero_airflow.matching.scoring import NO_ALLOCATION
from hetero_airflow.matching.shapes import WorkerEntry
from hetero_airflow.model.worker import WorkerState


class ClusterState(Protocol):
    """The workers, each in a state, some of which may move to others; a `WorkerIndex` is one."""

    entries: list[WorkerEntry]
    states: list[OccupancyState]

    @property
    def version(self) -> int:
        """Grows with each worker that moves."""
        ...

    def changed_since(self, version: int) -> Sequence[int]:
        """The workers that moved since that version."""
        ...

    def first_workers(self) -> list[int]:
        """The first worker of each state that there is."""
        ...


class IdleClusterState:
    """The workers as they would be if nothing were leased of them. Nothing moves here."""

    version = 0

    def __init__(self, entries: list[WorkerEntry], matcher: Matcher) -> None:
        self.entries = entries
        self.states = [
            matcher.state(entry.shape, entry.worker.state is WorkerState.LOST, (NO_ALLOCATION,) * len(entry.device_ids))
            for entry in entries
        ]

    def changed_since(self, version: int) -> Sequence[int]:
        """None ever."""
        return ()

    def first_workers(self) -> list[int]:
        """The first worker of each state that there is."""
        return list({state: number for number, state in reversed(list(enumerate(self.states)))}.values())
