"""Rankings and rejection counts: where one alternative fits on all workers, best first, and why not elsewhere.

Both are computed once. Then they follow the changes of the worker index, each when it is next asked.
"""

from abc import ABC, abstractmethod
from collections import Counter
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

from hetero_airflow.matching.feasibility import Rejection
from hetero_airflow.matching.matcher import Fit, MatchResult, OccupancyState
from hetero_airflow.model.plan import Reason
from hetero_airflow.model.request import Alternative

if TYPE_CHECKING:
    from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex

_Key = float | tuple[float, ...]

_Entry = tuple[_Key, int, int, OccupancyState]
"""The rank, the first worker of the state when it was ranked, a serial number, the state."""

_SLACK = 64
"""Entries that a heap may hold beyond twice the number of states before it is built again."""


class MatchResults(dict[OccupancyState, MatchResult]):
    """The result of one alternative beside a reservation, by state; computed at the first lookup."""

    def __init__(self, index: "WorkerIndex", alternative: Alternative, reserved: "ReservedCapacity | None") -> None:
        super().__init__()
        self._index, self._alternative, self._reserved = index, alternative, reserved

    def __missing__(self, state: OccupancyState) -> MatchResult:
        result = self[state] = self._index.match(self._alternative, state, self._reserved)
        return result


class _Follower(ABC):
    """A heap of states that follows the changes of the worker index: the smallest key first, then the lowest worker.

    An entry is valid while its worker is the lowest of its state. When an entry whose worker left comes to the top, it
    is corrected. When a state gets a lower worker, another entry is pushed.
    """

    def __init__(self, index: "WorkerIndex", results: MatchResults) -> None:
        self._index, self.results = index, results
        self._start()

    def _start(self) -> None:
        """Fill the heap from all states."""
        self.version = self._index.version
        self._serial = count()
        self._heap: list[_Entry] = [
            (key, group.heap[0], next(self._serial), state)
            for state, group in self._index.groups.items()
            if (key := self._key(state)) is not None
        ]
        heapify(self._heap)

    def _catch_up(self) -> None:
        """Take in the workers that changed since the last time."""
        index = self._index
        if self.version == index.version:
            return
        changed, states = index.changed_since(self.version), len(index.groups)
        if len(changed) > states or len(self._heap) > 2 * states + _SLACK:
            self._start()
            return
        self.version = index.version
        for worker in set(changed):
            self._change(worker, index.states[worker])

    def _change(self, worker: int, state: OccupancyState) -> None:
        """Take in that a worker came into the state."""
        key = self._key(state)
        if key is not None and self._index.groups[state].heap[0] == worker:
            heappush(self._heap, (key, worker, next(self._serial), state))

    def _first(self) -> tuple[int, OccupancyState] | None:
        """The lowest worker of the first state, and the state."""
        heap, first_worker = self._heap, self._index.first_worker
        while heap:
            key, worker, _, state = heap[0]
            lowest = first_worker(state)
            if lowest == worker:
                return worker, state
            if lowest is None:
                heappop(heap)
            else:
                heapreplace(heap, (key, lowest, next(self._serial), state))
        return None

    def _several(self, limit: int) -> list[tuple[int, OccupancyState]]:
        """The first states, with the lowest worker of each."""
        entries: dict[OccupancyState, _Entry] = {}
        while len(entries) < limit and self._first() is not None:
            entry = heappop(self._heap)
            entries.setdefault(entry[3], entry)
        for entry in entries.values():
            heappush(self._heap, entry)
        return [(worker, state) for state, (_, worker, _, _) in entries.items()]

    @abstractmethod
    def _key(self, state: OccupancyState) -> _Key | None:
        """The rank of a state; None if it does not belong into the heap."""


class Ranking(_Follower):
    """The workers where one alternative fits, by score."""

    def first(self) -> tuple[int, Fit] | None:
        """The best (worker, fit); ties go to the lower worker id."""
        self._catch_up()
        best = self._first()
        return None if best is None else (best[0], self._fit(best[1]))

    def best(self, limit: int = 1) -> list[tuple[int, Fit]]:
        """The best (worker, fit) pairs, best first, one per state; ties go to the lower worker id."""
        self._catch_up()
        return [(worker, self._fit(state)) for worker, state in self._several(limit)]

    def _fit(self, state: OccupancyState) -> Fit:
        fit = self.results[state]
        assert isinstance(fit, Fit), "only states that fit are ranked"
        return fit

    def _key(self, state: OccupancyState) -> _Key | None:
        result = self.results[state]
        return -result.score if isinstance(result, Fit) else None


class RejectionCounts(_Follower):
    """The workers where one alternative does not fit, counted by reason, and the one that is closest to a fit."""

    def filtered(self) -> dict[Reason, int]:
        """Reason → number of workers that it rules out."""
        self._catch_up()
        return {reason: workers for reason, workers in self._filtered.items() if workers}

    def nearest(self) -> tuple[int, Rejection] | None:
        """The worker that is closest to a fit; ties go to the lower worker id."""
        self._catch_up()
        first = self._first()
        if first is None:
            return None
        rejection = self.results[first[1]]
        assert isinstance(rejection, Rejection), "only states that don't fit are counted"
        return first[0], rejection

    def _start(self) -> None:
        super()._start()
        self._counted = self._index.states.copy()
        self._filtered: Counter[Reason] = Counter()
        for state, group in self._index.groups.items():
            self._count(state, group.size)

    def _change(self, worker: int, state: OccupancyState) -> None:
        before, self._counted[worker] = self._counted[worker], state
        if before is not state:
            self._count(before, -1)
            self._count(state, 1)
            super()._change(worker, state)

    def _count(self, state: OccupancyState, workers: int) -> None:
        result = self.results[state]
        if isinstance(result, Rejection):
            self._filtered[result.reason] += workers

    def _key(self, state: OccupancyState) -> _Key | None:
        result = self.results[state]
        if isinstance(result, Fit):
            return None
        is_transient, stage, amount = result.closeness
        return (-is_transient, -stage, -amount)
