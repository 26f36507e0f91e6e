"""When what is leased now will be free, and what is booked of it until when. Pure.

An end is foreseen from the high estimate of a run's work (`Estimates.works`), since it is to be an upper bound; a
run that has exceeded that is taken to go on for as long as nine of ten such runs would. Of a run of which nothing
is known, no end is foreseen.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from hetero_airflow.matching.feasibility import ResourceNeed
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.shapes import Shape, WorkerEntry
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.restart import usual_restart_s
from hetero_airflow.model.snapshot import PendingRequest, Snapshot

Taken = tuple[tuple[int, int, int], ...]
"""(position, thousandths, bytes) on one worker."""


class Timetable:
    """Seconds from now throughout. What is placed during the decision is to be told with `place`."""

    def __init__(self, fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        self._fleet = fleet
        self._known = snapshot.estimates
        self._ends: defaultdict[int, list[tuple[float, Taken]]] = defaultdict(list)
        """Worker → what becomes free, and when, in that order."""
        self._booked: defaultdict[int, list[tuple[float, float, Taken]]] = defaultdict(list)
        """Worker → (from, until, what) of each booking, in that order."""
        self._lasts: dict[object, float] = {}
        numbers = {seat.worker.id: number for number, seat in enumerate(fleet.entries)}
        ends = _lease_ends(snapshot, fleet.entries, numbers, now)
        for lease in snapshot.leases:
            end_s = ends.get(lease.id)
            if end_s is not None:
                number = numbers[lease.worker_id]
                position = fleet.entries[number].position
                claims = [
                    (position[c.device_id], c.share_milli, c.memory_bytes)
                    for c in lease.claims
                    if c.device_id in position
                ]
                insort(self._ends[number], (end_s, tuple(claims)))

    def events(self) -> list[tuple[float, int]]:
        """(time, worker) of each foreseen end and of each booking's, in that order."""
        found = [(at, number) for number, ends in self._ends.items() for at, _ in ends]
        found += [(until, number) for number, booked in self._booked.items() for _, until, _ in booked]
        return sorted(entry for entry in found if entry[0] < math.inf)

    def lasts_s(self, pending: PendingRequest, alternative: Alternative, shape: Shape) -> float:
        """How long the request would hold what it asks for on the slowest device there; infinite if not known."""
        key = (
            pending.task,
            alternative.key,
            shape,
            tuple(sorted(pending.attained_service_s.items())),
            pending.gang_size,
        )
        lasts = self._lasts.get(key)
        if lasts is None:
            usable = self._fleet.matcher.feasibility(alternative, shape).usable
            names = {device_class(shape.devices[position]) for position in usable}
            lasts = max((_lasts_s(self._known, pending, name) for name in names), default=math.inf)
            self._lasts[key] = lasts
        return lasts

    def place(self, pending: PendingRequest, number: int, alternative: Alternative, fit: Fit) -> None:
        """Take note of what is placed now."""
        end_s = self.lasts_s(pending, alternative, self._fleet.entries[number].shape)
        insort(self._ends[number], (end_s, _taken(fit)))

    def book(self, number: int, from_s: float, until_s: float, fit: Fit) -> None:
        """Let nobody else have what a fit takes in that time."""
        insort(self._booked[number], (from_s, until_s, _taken(fit)))

    def starts(self, number: int) -> list[float]:
        """When bookings of a worker begin."""
        return [from_s for from_s, _, _ in self._booked.get(number, ())]

    def fit(self, alternative: Alternative, number: int, from_s: float, until_s: float) -> Fit | None:
        """Where on the worker the alternative fits during all that time."""
        peak = self._peak(number, from_s, until_s)
        state = self._fleet.states[number]
        held = tuple(
            Allocation(milli, memory, before.granted_s)
            for (milli, memory), before in zip(peak, state.held, strict=True)
        )
        outcome = self._fleet.outcome(alternative, self._fleet.matcher.state(state.shape, state.is_lost, held))
        return outcome if isinstance(outcome, Fit) else None

    def kept(self, number: int, until_s: float) -> tuple[ResourceNeed, ...]:
        """What must be left free of each device by whoever starts now and stays until then."""
        now = self._fleet.states[number].held
        needs = [(0, 0)] * len(now)
        for from_s, _, _ in self._booked.get(number, ()):
            if from_s < until_s:
                then = self._held_at(number, from_s)
                needs = [
                    (max(n[0], t[0] - h.share_milli), max(n[1], t[1] - h.memory_bytes))
                    for n, t, h in zip(needs, then, now, strict=True)
                ]
        return tuple(ResourceNeed(milli, memory) for milli, memory in needs)

    def _peak(self, number: int, from_s: float, until_s: float) -> list[tuple[int, int]]:
        """The most that is held of each device at any time in between; it only grows where a booking begins."""
        times = [from_s, *(start for start in self.starts(number) if from_s < start < until_s)]
        at = [self._held_at(number, time) for time in times]
        return [(max(h[p][0] for h in at), max(h[p][1] for h in at)) for p in range(len(at[0]))]

    def _held_at(self, number: int, time_s: float) -> list[tuple[int, int]]:
        held = [[one.share_milli, one.memory_bytes] for one in self._fleet.states[number].held]
        for end_s, taken in self._ends.get(number, ()):
            if end_s > time_s:
                break
            _add(held, taken, -1)
        for from_s, until_s, taken in self._booked.get(number, ()):
            if from_s <= time_s < until_s:
                _add(held, taken, 1)
        return [(milli, memory) for milli, memory in held]


def _add(held: list[list[int]], taken: Taken, sign: int) -> None:
    for position, milli, memory in taken:
        held[position][0] += sign * milli
        held[position][1] += sign * memory


def _taken(fit: Fit) -> Taken:
    return tuple((position, need.share_milli, need.memory_bytes) for position, need in fit.takes)


def _lasts_s(known: Estimates, pending: PendingRequest, device_class: str) -> float:
    """How long at most a request that starts now goes on, by its high estimate, a restart included."""
    work, speed = known.works.get(pending.task), known.speed(pending.task, device_class)
    if work is None or not speed:
        return math.inf
    if pending.gang:
        speed *= known.spread.get(pending.task, 1.0)
    done = math.fsum(
        seconds * (known.speed(pending.task, name) or 0.0) for name, seconds in pending.attained_service_s.items()
    )
    restart_s = (
        usual_restart_s(pending.gang_size * pending.request.alternatives[0].count)
        if pending.attained_service_s
        else 0.0
    )
    return max(work.high - done, 0.0) / speed + restart_s


def _lease_ends(
    snapshot: Snapshot, seats: list[WorkerEntry], numbers: Mapping[str, int], now: datetime
) -> Mapping[str, float]:
    """Lease id → in how many seconds it ends at the latest; those of a gang at once; absent where nobody knows."""
    ends: dict[str, float] = {}
    gangs: defaultdict[str, list[str]] = defaultdict(list)
    for lease in snapshot.leases:
        holder, number = snapshot.holders.get(lease.request_id), numbers.get(lease.worker_id)
        if holder is None or number is None or lease.state in (LeaseState.EXPIRED, LeaseState.PREEMPTED):
            continue
        name = _class_of(lease, seats[number])
        held_s = max((now - lease.granted_at).total_seconds(), 0.0)
        left_s = math.inf if name is None else _lasts_s(snapshot.estimates, holder, name) - held_s
        if name is not None and left_s <= 0:
            more = snapshot.estimates.remaining_s(holder.task, name, held_s, holder.attained_service_s)
            left_s = math.inf if more is None else more.high
        ends[lease.id] = left_s
        if holder.gang:
            gangs[holder.gang].append(lease.id)
    for members in gangs.values():
        last = max(ends[member] for member in members)
        ends |= dict.fromkeys(members, last)
    return {lease_id: end_s for lease_id, end_s in ends.items() if end_s < math.inf}


def _class_of(lease: Lease, seat: WorkerEntry) -> str | None:
    """The class of the first accelerator of a lease, or of its CPU; None if the worker no longer has it."""
    devices = [seat.shape.devices[seat.position[c.device_id]] for c in lease.claims if c.device_id in seat.position]
    first = next((device for device in devices if device.kind != "cpu"), devices[0] if devices else None)
    return None if first is None else device_class(first)
