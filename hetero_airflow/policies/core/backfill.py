"""The reservation for the head of the queue: a start time on one worker, which later requests must not delay.

This is EASY backfill (Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001). The head's shadow time is the
earliest time at which it fits on a worker by the expected ends of running work. A later request may start elsewhere, or
on that worker if it is expected to end before that time or leaves the reserved devices free. Deviations: each decision
makes the reservation again, so it moves only if an estimate was wrong; at most `MAX_LOOKS` expected ends are tried.

Where the ends of runs are only guessed, the head still has one worker: the one on which the fewest runs have to end.
But then nothing is let in there because it is expected to end in time.

For a gang, no time can be computed. Everything that it could use is left free for it on all workers. So it is for any
head where small requests are migrated to make room (`migration`): a worker is emptied faster than it empties itself.
"""

import math
from collections.abc import Callable, Sequence
from datetime import datetime

from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.timetable import Placed, Timetable

MAX_LOOKS = 2000
"""Expected ends that are tried; each takes 10 to 20 µs."""


class HeadReservation:
    """The reservation of one decision. Calls come in the order of the queue."""

    def __init__(self, index: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        self._index = index
        self._snapshot = snapshot
        self._now = now
        self._is_on_one_worker = True
        self._placed: list[Placed] = []
        """What was placed before the first request that has to wait."""
        self._timetable: Timetable | None = None
        """Made for that request, if it has one worker."""
        self._by_need: ReservedCapacity | None = None
        self._worker = -1
        """The number of the worker that is reserved."""
        self._at_s = 0.0
        self._start_fit: Fit | None = None
        """What the head is expected to get there at that time."""
        self._ends_before_s = -math.inf
        self._on_worker: ReservedCapacity | None = None
        self._ends_before: dict[object, bool] = {}
        """Whether equal requests that have not run end before the start of the head."""

    def note_placed(self, pending: PendingRequest, worker: int, alternative: int, fit: Fit) -> None:
        """Take into account that a request is placed."""
        if self._timetable is None:
            self._placed.append((pending, worker, alternative, fit))
            return
        self._timetable.note_placed(pending, worker, alternative, fit)
        if worker == self._worker:
            self._on_worker = None

    def note_waiting(self, unit: Sequence[PendingRequest]) -> None:
        """Make the reservation for the first that waits."""
        if self._timetable is not None or self._by_need is not None:
            return
        alternatives = tuple(alternative for pending in unit for alternative in pending.request.alternatives)
        if len(unit) == 1 and self._is_on_one_worker:
            self._timetable = Timetable(self._index, self._snapshot, self._now, alternatives, self._placed)
            if self._reserve(unit[0], self._timetable):
                return
        self._by_need = self._index.reserved_capacity_for(alternatives, len(unit))

    def _reserve(self, head: PendingRequest, timetable: Timetable) -> bool:
        """Reserve the earliest time at which it fits; False if there is none."""
        for at_s, worker in timetable.events()[:MAX_LOOKS]:
            shape = self._index.entries[worker].shape
            for alternative in head.request.alternatives:
                if not self._index.matcher.feasibility(alternative, shape).is_servable:
                    continue
                fit = timetable.fit(alternative, worker, at_s)
                if fit is not None:
                    self._worker, self._at_s, self._start_fit = worker, at_s, fit
                    self._ends_before_s = at_s if timetable.is_known(worker, at_s) else -math.inf
                    self._index.mark(worker)
                    return True
        return False

    def reserved_from(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What a request must leave free: nothing on the reserved worker if it ends before the start of the head.

        Equal answers are the same object.
        """
        if self._start_fit is None or self._timetable is None:
            return self._by_need
        key = (pending.task, pending.request.fingerprint, pending.gang_size)
        ends_before = None if pending.attained_service_s else self._ends_before.get(key)
        if ends_before is None:
            ends_before = self._duration_s(pending, self._timetable) <= self._ends_before_s
            if not pending.attained_service_s:
                self._ends_before[key] = ends_before
        if ends_before:
            return None
        if self._on_worker is None:
            needs = self._timetable.needs(self._worker, self._at_s, self._start_fit)
            self._on_worker = ReservedCapacity({}, {self._worker: self._index.matcher.shape_reservation(needs)})
        return self._on_worker

    def _duration_s(self, pending: PendingRequest, timetable: Timetable) -> float:
        """On the reserved worker, by the slowest alternative that can run there; infinite if unknown."""
        shape = self._index.entries[self._worker].shape
        verdict = self._index.matcher.feasibility
        servable = [a for a in pending.request.alternatives if verdict(a, shape).is_servable]
        return max((timetable.duration_s(pending, a, shape) for a in servable), default=math.inf)


MakeReservations = Callable[[WorkerIndex, Snapshot, datetime], HeadReservation]
"""The plug-in point of `ListPolicy`: the reservations of one decision, empty at first."""
