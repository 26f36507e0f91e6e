"""When leased devices are expected to be free. Pure.

The end of a run is expected by its high estimate (`run_ends`), because it is to be an upper bound. Where it is only
guessed, the run is taken to end at any moment: of n equal guesses on a worker, the first run is expected to end after
1/n of that time, the second 1/(n-1) later, and so on: the order statistics of the exponential distribution (Rényi, Acta
Math. Hung. 4, 1953). This finds the worker on which the fewest runs have to end. No request is let in on the strength
of a guess.
"""

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate

from hetero_airflow.matching.feasibility import ResourceNeed
from hetero_airflow.matching.future_capacity import ClaimedAmounts, FutureCapacity
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.run_ends import durations_s, run_ends, usual_run_s

Placed = tuple[PendingRequest, int, int, Fit]
"""A request, the number of its worker, the number of its alternative, and what it takes there."""


class Timetable:
    """All times are seconds from now. The caller reports what it places during the decision (`note_placed`).

    :param wanted: the alternatives of the head; of runs with unknown ends, those are taken to end first that free most
        for it
    :param placed: what this decision has placed already
    """

    def __init__(
        self,
        index: WorkerIndex,
        snapshot: Snapshot,
        now: datetime,
        wanted: Sequence[Alternative],
        placed: Iterable[Placed],
    ) -> None:
        self._index = index
        self._estimates = snapshot.estimates
        self._wanted = wanted
        self._ends: defaultdict[int, list[tuple[float, ClaimedAmounts]]] = defaultdict(list)
        """Worker → (time, what becomes free then), by time; infinite for later requests whose end is unknown."""
        self._durations: dict[object, float] = {}
        usual_s = usual_run_s(snapshot.estimates)
        unknown: defaultdict[int, list[tuple[float, ClaimedAmounts]]] = defaultdict(list)
        ends = run_ends(snapshot, index, now)
        for lease in snapshot.leases:
            end = ends.get(lease.id)
            if end is not None:
                number = index.numbers[lease.worker_id]
                runs = self._ends[number] if end.is_known else unknown[number]
                runs.append((end.high_s, FutureCapacity(index, number).claimed_amounts(lease.claims)))
        for pending, number, alternative, fit in placed:
            end_s = self._end_s(pending, number, alternative)
            if end_s < math.inf:
                self._ends[number].append((end_s, _amounts(fit)))
            else:
                unknown[number].append((usual_s, _amounts(fit)))
        self._guessed_from: dict[int, float] = {}
        """Worker → the first of its ends that is only guessed."""
        for number, runs in unknown.items():
            guesses = self._guesses(number, runs)
            self._guessed_from[number] = guesses[0][0]
            self._ends[number].extend(guesses)
        for known in self._ends.values():
            known.sort()

    def _guesses(self, number: int, runs: Sequence[tuple[float, ClaimedAmounts]]) -> list[tuple[float, ClaimedAmounts]]:
        """When the runs on a worker end whose ends are unknown, from (the mean time that such a run needs, amounts)."""
        shape = self._index.entries[number].shape
        usable = {position for a in self._wanted for position in self._index.matcher.feasibility(a, shape).usable}

        def seconds_for_each_share(run: tuple[float, ClaimedAmounts]) -> tuple[float, float, ClaimedAmounts]:
            mean_s, amounts = run
            freed = sum(share_milli for position, share_milli, _ in amounts if position in usable)
            return mean_s / freed if freed else math.inf, mean_s, amounts

        in_order = sorted(runs, key=seconds_for_each_share)
        rates = list(accumulate(1 / mean_s for mean_s, _ in reversed(in_order)))
        ends = accumulate(1 / rate for rate in reversed(rates))
        return [(end_s, amounts) for end_s, (_, amounts) in zip(ends, in_order, strict=True)]

    def is_known(self, number: int, at_s: float) -> bool:
        """Whether what is free on the worker at that time follows from estimates, not from guesses."""
        return at_s < self._guessed_from.get(number, math.inf)

    def events(self) -> list[tuple[float, int]]:
        """(time, worker) of each expected end of a run, by time."""
        return sorted((at, number) for number, ends in self._ends.items() for at, _ in ends)

    def duration_s(self, pending: PendingRequest, alternative: Alternative, shape: Shape) -> float:
        """How long the request would hold its devices, on the slowest suitable device there; infinite if unknown."""
        key = (
            pending.task,
            alternative.key,
            shape,
            tuple(sorted(pending.attained_service_s.items())),
            pending.gang_size,
        )
        duration = self._durations.get(key)
        if duration is None:
            usable = self._index.matcher.feasibility(alternative, shape).usable
            names = {device_class(shape.devices[position]) for position in usable}
            duration = max((durations_s(self._estimates, pending, name)[1] for name in names), default=math.inf)
            self._durations[key] = duration
        return duration

    def note_placed(self, pending: PendingRequest, number: int, alternative: int, fit: Fit) -> None:
        """Take into account that a request is placed now, later than the head; no end of it is guessed."""
        insort(self._ends[number], (self._end_s(pending, number, alternative), _amounts(fit)))

    def _end_s(self, pending: PendingRequest, number: int, alternative: int) -> float:
        return self.duration_s(pending, pending.request.alternatives[alternative], self._index.entries[number].shape)

    def fit(self, alternative: Alternative, number: int, at_s: float) -> Fit | None:
        """Where on the worker the alternative fits at that time."""
        state = self._index.states[number]
        held = tuple(
            Allocation(share_milli, memory, before.granted_s)
            for (share_milli, memory), before in zip(self._held_at(number, at_s), state.held, strict=True)
        )
        outcome = self._index.match(alternative, self._index.matcher.state(state.shape, state.is_lost, held))
        return outcome if isinstance(outcome, Fit) else None

    def needs(self, number: int, at_s: float, fit: Fit) -> tuple[ResourceNeed, ...]:
        """What must be free of each device now so that the fit is free at that time."""
        then = self._held_at(number, at_s)
        for position, need in fit.takes:
            share_milli, memory = then[position]
            then[position] = share_milli + need.share_milli, memory + need.memory_bytes
        now = self._index.states[number].held
        return tuple(
            ResourceNeed(max(0, t[0] - n.share_milli), max(0, t[1] - n.memory_bytes))
            for t, n in zip(then, now, strict=True)
        )

    def _held_at(self, number: int, at_s: float) -> list[tuple[int, int]]:
        """(thousandths, bytes) of each device."""
        held = [(allocation.share_milli, allocation.memory_bytes) for allocation in self._index.states[number].held]
        for end_s, amounts in self._ends.get(number, ()):
            if end_s > at_s:
                break
            for position, share_milli, memory in amounts:
                held[position] = held[position][0] - share_milli, held[position][1] - memory
        return held


def _amounts(fit: Fit) -> ClaimedAmounts:
    return tuple((position, need.share_milli, need.memory_bytes) for position, need in fit.takes)
