"""Backfill with reservations by time: the first waiting requests get a start time that later ones must not delay.

EASY (Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) makes one reservation, for the head of the
queue, at its shadow time: the earliest time at which it fits by the expected ends of running work. A later request may
start if it is expected to end before that time, or if it leaves the reserved devices free. Conservative backfill
reserves for several requests, each beside the reservations before it. Deviations: each decision makes all reservations
again, so a reservation moves only if an estimate was wrong or a reservation before it moved; at most `MAX_LOOKS`
expected ends are tried for one reservation.

For a gang, or where durations are unknown, no time can be computed. Then everything that the request could use is left
free for it (`reserve_by_need`), and no request behind it gets a reservation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime

from hetero_airflow.matching.feasibility import ResourceNeed
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.reservation import MakeReservations, reserve_by_need
from hetero_airflow.policies.core.timetable import Timetable

MAX_LOOKS = 2000
"""Expected ends that are tried for one request; each takes 10 to 20 µs."""


def reserve_by_time(most: int) -> MakeReservations:
    """Reserves a time for at most this many requests in a decision."""
    return lambda index, snapshot, now: TimedReservations(index, snapshot, now, most)


class TimedReservations:
    """The reservations of one decision."""

    def __init__(self, index: WorkerIndex, snapshot: Snapshot, now: datetime, most: int) -> None:
        self._index = index
        self._snapshot = snapshot
        self._now = now
        self._left = most
        self._timetable: Timetable | None = None
        """Made for the first request that waits."""
        self._placed: list[tuple[PendingRequest, int, int, Fit]] = []
        """What was placed before that."""
        self._by_need: ReservedCapacity | None = None
        self._starts: dict[int, list[float]] = {}
        """Worker → the start times of its reservations."""
        self._reserved: dict[object, ReservedCapacity] = {}
        self._earliest: dict[object, float] = {}
        """Request and its duration → the time before which it does not fit."""

    def note_placed(self, pending: PendingRequest, worker: int, alternative: int, fit: Fit) -> None:
        """Take into account that a request is placed."""
        if self._timetable is None:
            self._placed.append((pending, worker, alternative, fit))
            return
        self._timetable.note_placed(pending, worker, pending.request.alternatives[alternative], fit)
        if worker in self._starts:
            self._reserved.clear()

    def note_waiting(self, unit: Sequence[PendingRequest]) -> None:
        """Make a reservation for it if it is one of the first that wait."""
        if not self._left:
            return
        self._left -= 1
        if self._timetable is None:
            self._timetable = Timetable(self._index, self._snapshot, self._now)
            for pending, worker, alternative, fit in self._placed:
                self._timetable.note_placed(pending, worker, pending.request.alternatives[alternative], fit)
        self._reserved.clear()
        if len(unit) > 1 or not self._reserve(unit[0], self._timetable):
            self._by_need = reserve_by_need(self._index, unit)
            self._left = 0

    def _reserve(self, pending: PendingRequest, timetable: Timetable) -> bool:
        """Reserve the earliest time at which it fits; False if there is none."""
        key = (pending.task, pending.request.fingerprint, tuple(sorted(pending.attained_service_s.items())))
        events = timetable.events()
        first = bisect_left(events, (self._earliest.get(key, 0.0), -1))
        for from_s, worker in events[first : first + MAX_LOOKS]:
            for alternative in pending.request.alternatives:
                shape = self._index.entries[worker].shape
                if not self._index.matcher.feasibility(alternative, shape).is_servable:
                    continue
                until_s = from_s + timetable.duration_s(pending, alternative, shape)
                fit = timetable.fit(alternative, worker, from_s, until_s)
                if fit is not None:
                    timetable.reserve(worker, from_s, until_s, fit)
                    self._starts[worker] = timetable.starts(worker)
                    self._index.mark(worker)
                    self._earliest[key] = from_s
                    return True
        return False

    def reserved_from(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What a request must leave free, which depends on its duration."""
        if not self._starts or self._timetable is None:
            return self._by_need
        ends = {worker: self._duration_s(pending, worker) for worker in self._starts}
        key = tuple(bisect_left(starts, ends[worker]) for worker, starts in self._starts.items())
        reserved = self._reserved.get(key)
        if reserved is None:
            by_shape = {} if self._by_need is None else self._by_need.by_shape
            by_worker = {}
            for worker, until_s in ends.items():
                needs = self._timetable.reserved_until(worker, until_s)
                by_need = by_shape.get(self._index.entries[worker].shape)
                if by_need is not None:
                    needs = tuple(
                        ResourceNeed(max(a.share_milli, b.share_milli), max(a.memory_bytes, b.memory_bytes))
                        for a, b in zip(needs, by_need.needs, strict=True)
                    )
                by_worker[worker] = self._index.matcher.shape_reservation(needs)
            reserved = self._reserved[key] = ReservedCapacity(by_shape, by_worker)
        return reserved

    def _duration_s(self, pending: PendingRequest, worker: int) -> float:
        """On that worker, by the slowest alternative that can run there; infinite if unknown."""
        assert self._timetable is not None, "each reservation is in the timetable"
        shape = self._index.entries[worker].shape
        verdict = self._index.matcher.feasibility
        servable = [a for a in pending.request.alternatives if verdict(a, shape).is_servable]
        return max((self._timetable.duration_s(pending, a, shape) for a in servable), default=math.inf)
