"""Backfill with reservations at foreseen times: the first of the queue are booked, others start where they fit beside.

EASY (Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) books the first that waits, at its shadow time:
the earliest at which it fits by the foreseen ends of what runs. A later request may start if it is foreseen to end
before that, or if it leaves what was booked. Conservative backfill books more of them, each beside what was booked
before. Deviations: all bookings are made anew in each decision, so a booking only ever moves because estimates were
wrong or somebody before it moved; at most `MAX_LOOKS` foreseen ends are looked at for one.

Where no time can be foreseen, as of gangs or where durations are not known, whatever the request could use is
left free for it (`ReservationsByNeed`), and nobody behind it is booked.
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
from hetero_airflow.policies.core.reservation import MakeReservations
from hetero_airflow.policies.core.timetable import Timetable

MAX_LOOKS = 2000
"""Foreseen ends that are looked at for one request, of 10 to 20 µs each."""


def reserve_by_time(most: int) -> MakeReservations:
    """Books at most so many requests in a decision."""
    return lambda fleet, snapshot, now: TimedReservations(fleet, snapshot, now, most)


class TimedReservations:
    """The bookings of one decision."""

    def __init__(self, fleet: WorkerIndex, snapshot: Snapshot, now: datetime, most: int) -> None:
        self._fleet = fleet
        self._snapshot = snapshot
        self._now = now
        self._left = most
        self._times: Timetable | None = None
        self._placed: list[tuple[PendingRequest, int, int, Fit]] = []
        self._by_need: ReservedCapacity | None = None
        self._booked: dict[int, list[float]] = {}
        """Worker → when its bookings begin."""
        self._keeps: dict[object, ReservedCapacity] = {}
        self._found: dict[object, float] = {}
        """What is asked and for how long → the time before which it does not fit."""

    def place(self, pending: PendingRequest, number: int, alternative: int, fit: Fit) -> None:
        """Take note that a request was placed."""
        if self._times is None:
            self._placed.append((pending, number, alternative, fit))
            return
        self._times.place(pending, number, pending.request.alternatives[alternative], fit)
        if number in self._booked:
            self._keeps.clear()

    def wait(self, unit: Sequence[PendingRequest]) -> None:
        """Book it if it is one of the first that wait."""
        if not self._left:
            return
        self._left -= 1
        if self._times is None:
            self._times = Timetable(self._fleet, self._snapshot, self._now)
            for pending, number, alternative, fit in self._placed:
                self._times.place(pending, number, pending.request.alternatives[alternative], fit)
        self._keeps.clear()
        if len(unit) > 1 or not self._book(unit[0], self._times):
            alternatives = tuple(alternative for one in unit for alternative in one.request.alternatives)
            self._by_need = self._fleet.reserved_capacity_for(alternatives, len(unit))
            self._left = 0

    def _book(self, pending: PendingRequest, times: Timetable) -> bool:
        """Book the earliest time at which it fits; False if none is found."""
        key = (pending.task, pending.request.fingerprint, tuple(sorted(pending.attained_service_s.items())))
        events = times.events()
        first = bisect_left(events, (self._found.get(key, 0.0), -1))
        for from_s, number in events[first : first + MAX_LOOKS]:
            for alternative in pending.request.alternatives:
                shape = self._fleet.entries[number].shape
                if not self._fleet.matcher.feasibility(alternative, shape).is_servable:
                    continue
                until_s = from_s + times.lasts_s(pending, alternative, shape)
                fit = times.fit(alternative, number, from_s, until_s)
                if fit is not None:
                    times.book(number, from_s, until_s, fit)
                    self._booked[number] = times.starts(number)
                    self._fleet.mark(number)
                    self._found[key] = from_s
                    return True
        return False

    def against(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What is kept from a request, given how long it lasts."""
        if not self._booked or self._times is None:
            return self._by_need
        lasts = {number: self._lasts_s(pending, number) for number in self._booked}
        key = tuple(bisect_left(starts, lasts[number]) for number, starts in self._booked.items())
        keep = self._keeps.get(key)
        if keep is None:
            base = {} if self._by_need is None else self._by_need.by_shape
            by_worker = {}
            for number, until_s in lasts.items():
                needs = self._times.kept(number, until_s)
                also = base.get(self._fleet.entries[number].shape)
                if also is not None:
                    needs = tuple(
                        ResourceNeed(max(a.share_milli, b.share_milli), max(a.memory_bytes, b.memory_bytes))
                        for a, b in zip(needs, also.needs, strict=True)
                    )
                by_worker[number] = self._fleet.matcher.shape_reservation(needs)
            keep = self._keeps[key] = ReservedCapacity(base, by_worker)
        return keep

    def _lasts_s(self, pending: PendingRequest, number: int) -> float:
        """On that worker, by the slowest of its alternatives there; infinite if not known."""
        assert self._times is not None, "nothing is booked without it"
        shape = self._fleet.entries[number].shape
        verdict = self._fleet.matcher.feasibility
        there = [one for one in pending.request.alternatives if verdict(one, shape).is_servable]
        return max((self._times.lasts_s(pending, one, shape) for one in there), default=math.inf)
