"""One alternative asked of a whole fleet: where it fits, best first, and what is in the way elsewhere.

Both are made once and then follow the moves of the fleet's workers, each when it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
"""What it is ranked by, the first worker of the state when it was ranked, a serial number, the state."""

_SLACK = 64
"""Entries that a heap may hold beyond twice its fleet's states before it is made anew."""


class MatchResults(dict[OccupancyState, MatchResult]):
    """What is true of one alternative beside what is kept, by state; found out when it is first looked up."""

    def __init__(self, fleet: WorkerIndex, alternative: Alternative, keep: ReservedCapacity | None) -> None:
        super().__init__()
        self._fleet, self._alternative, self._keep = fleet, alternative, keep

    def __missing__(self, state: OccupancyState) -> MatchResult:
        outcome = self[state] = self._fleet.outcome(self._alternative, state, self._keep)
        return outcome


class _StateHeap:
    """A heap of states, those with the smallest key first, then those with the lowest worker.

    An entry stays true while its worker is the lowest of its state. One whose lowest worker left is put
    right when it comes to the top; for one that got a lower worker, another entry is pushed.
    """

    def __init__(self, fleet: WorkerIndex) -> None:
        self._fleet = fleet
        self.fill(())

    def fill(self, ranked: Iterable[tuple[_Key, int, OccupancyState]]) -> None:
        """Hold these states with their lowest workers, and no others."""
        self._heap = [(key, worker, serial, state) for serial, (key, worker, state) in enumerate(ranked)]
        self._serial = count(len(self._heap))
        heapify(self._heap)

    def push(self, key: _Key, worker: int, state: OccupancyState) -> None:
        """Take note that a worker came into the state."""
        if self._fleet.groups[state].heap[0] == worker:
            heappush(self._heap, (key, worker, next(self._serial), state))

    @property
    def is_overgrown(self) -> bool:
        """Whether most entries must be out of date."""
        return len(self._heap) > 2 * len(self._fleet.groups) + _SLACK

    def first(self) -> tuple[int, OccupancyState] | None:
        """The lowest worker of the first state, and the state."""
        heap, lowest_of = self._heap, self._fleet.lowest
        while heap:
            key, worker, _, state = heap[0]
            lowest = lowest_of(state)
            if lowest == worker:
                return worker, state
            if lowest is None:
                heappop(heap)
            else:
                heapreplace(heap, (key, lowest, next(self._serial), state))
        return None

    def several(self, limit: int) -> list[tuple[int, OccupancyState]]:
        """The first states, with the lowest worker of each."""
        found: dict[OccupancyState, _Entry] = {}
        while len(found) < limit and self.first() is not None:
            entry = heappop(self._heap)
            found.setdefault(entry[3], entry)
        for entry in found.values():
            heappush(self._heap, entry)
        return [(worker, state) for state, (_, worker, _, _) in found.items()]


class Ranking:
    """The workers where one alternative fits, by score."""

    def __init__(self, fleet: WorkerIndex, outcomes: MatchResults) -> None:
        self._fleet, self.outcomes = fleet, outcomes
        self._fits = _StateHeap(fleet)
        self._rank_all()

    def first(self) -> tuple[int, Fit] | None:
        """The best (worker, where on it); ties go to the lower worker id."""
        self._catch_up()
        found = self._fits.first()
        return None if found is None else (found[0], self._fit(found[1]))

    def best(self, limit: int = 1) -> list[tuple[int, Fit]]:
        """The best few, best first and one a state; ties go to the lower worker id."""
        self._catch_up()
        return [(worker, self._fit(state)) for worker, state in self._fits.several(limit)]

    def _fit(self, state: OccupancyState) -> Fit:
        fit = self.outcomes[state]
        assert isinstance(fit, Fit), "only states that fit are ranked"
        return fit

    def _rank_all(self) -> None:
        self.version = self._fleet.version
        outcomes = self.outcomes
        self._fits.fill(
            [
                (-outcome.score, group.heap[0], state)
                for state, group in self._fleet.groups.items()
                if isinstance(outcome := outcomes[state], Fit)
            ]
        )

    def _catch_up(self) -> None:
        fleet = self._fleet
        if self.version == fleet.version:
            return
        moved = fleet.changed_since(self.version)
        if len(moved) > len(fleet.groups) or self._fits.is_overgrown:
            self._rank_all()
            return
        self.version = fleet.version
        for worker in set(moved):
            state = fleet.states[worker]
            outcome = self.outcomes[state]
            if isinstance(outcome, Fit):
                self._fits.push(-outcome.score, worker, state)


class Census:
    """The workers where one alternative does not fit, counted by reason, and the one that comes closest."""

    def __init__(self, fleet: WorkerIndex, outcomes: MatchResults) -> None:
        self._fleet, self._outcomes = fleet, outcomes
        self._misses = _StateHeap(fleet)
        self._counted: list[OccupancyState] = []
        """The state in which each worker was counted."""
        self._filtered: Counter[Reason] = Counter()
        self._count_all()

    def filtered(self) -> dict[Reason, int]:
        """Reason → number of workers that it rules out."""
        self._catch_up()
        return {reason: workers for reason, workers in self._filtered.items() if workers}

    def nearest(self) -> tuple[int, Rejection] | None:
        """The worker that comes closest without fitting; ties go to the lower worker id."""
        self._catch_up()
        found = self._misses.first()
        if found is None:
            return None
        miss = self._outcomes[found[1]]
        assert isinstance(miss, Rejection), "only states that don't fit are counted"
        return found[0], miss

    def _count_all(self) -> None:
        fleet = self._fleet
        self.version = fleet.version
        self._counted = fleet.states.copy()
        self._filtered.clear()
        ranked = []
        for state, group in fleet.groups.items():
            outcome = self._outcomes[state]
            if isinstance(outcome, Rejection):
                self._filtered[outcome.reason] += group.size
                ranked.append((_distance(outcome), group.heap[0], state))
        self._misses.fill(ranked)

    def _catch_up(self) -> None:
        fleet = self._fleet
        if self.version == fleet.version:
            return
        moved = fleet.changed_since(self.version)
        if len(moved) > len(fleet.groups) or self._misses.is_overgrown:
            self._count_all()
            return
        self.version = fleet.version
        for worker in set(moved):
            before, after = self._counted[worker], fleet.states[worker]
            if before is after:
                continue
            self._counted[worker] = after
            outcome = self._outcomes[before]
            if isinstance(outcome, Rejection):
                self._filtered[outcome.reason] -= 1
            outcome = self._outcomes[after]
            if isinstance(outcome, Rejection):
                self._filtered[outcome.reason] += 1
                self._misses.push(_distance(outcome), worker, after)


def _distance(miss: Rejection) -> _Key:
    is_curable, stage, amount = miss.closeness
    return (-is_curable, -stage, -amount)
