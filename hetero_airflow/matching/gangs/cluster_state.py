"""Cluster state: all workers with their states, as gangs see them, with the current leases or without any."""

from collections.abc import Sequence
from typing import Protocol

from hetero_airflow.matching.matcher import Matcher, OccupancyState
from hetero_airflow.matching.scoring import NO_ALLOCATION
from hetero_airflow.matching.shapes import WorkerEntry
from hetero_airflow.model.worker import WorkerState


class ClusterState(Protocol):
    """The workers, each in a state that may change; `WorkerIndex` implements it."""

    entries: list[WorkerEntry]
    states: list[OccupancyState]

    @property
    def version(self) -> int:
        """A number that grows with each change of a worker."""

    def changed_since(self, version: int) -> Sequence[int]:
        """The workers that changed since that version."""

    def first_workers(self) -> list[int]:
        """The first worker of each state."""


class IdleClusterState:
    """The workers as if nothing were leased. Their states never change."""

    version = 0

    def __init__(self, entries: list[WorkerEntry], matcher: Matcher) -> None:
        self.entries = entries
        self.states = [
            matcher.state(entry.shape, entry.worker.state is WorkerState.LOST, (NO_ALLOCATION,) * len(entry.device_ids))
            for entry in entries
        ]

    def changed_since(self, version: int) -> Sequence[int]:
        """Always none."""
        return ()

    def first_workers(self) -> list[int]:
        """The first worker of each state."""
        return list({state: number for number, state in reversed(list(enumerate(self.states)))}.values())
