"""Makes room for large requests by moving small ones that run to other devices.

Moved is only who can go on at once: in a pretence of the next decision the large request gets its place, those large
ones behind it take what fits them, and then each that made room must find a place. The next decision comes to the same,
since the queue (`consolidation.large_first`) has the large ones first and those that were moved next, nothing is kept
from those that were moved, and room is made only if no other than large ones wait before. What is to be whose
then, others do not get before.

Bounded: room is made for one request at a time, by at most `MAX_MOVES`, and who has got its devices keeps them
for a minimum time. Of the workers on which room could be made, that is chosen where the fewest device-seconds are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from hetero_airflow.matching.future_capacity import FutureCapacity, added, freed
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Preempt, Reason, ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.fit_cache import FitCache
from hetero_airflow.policies.core.list_scheduler import best_placement
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank, VictimUnit, victim_units
from hetero_airflow.policies.core.request_progress import RequestProgress
from hetero_airflow.policies.core.reservation import (
    MakePreemptionPlan,
    NoPreemption,
    PreemptionPlan,
    ReservationsByNeed,
)

MIN_HELD_S = 70.0
"""For so long whoever got its devices is not moved: ten times what it costs a small request."""
MAX_MOVES = 16
MAX_TRIALS = 16
"""Workers on which room is tried to be made, the cheapest first."""


def is_large(pending: PendingRequest) -> bool:
    """Whether it asks for several accelerators of one worker.

    >>> from hetero_airflow.testing import a_pending
    >>> [is_large(a_pending(device=text)) for text in ("gpu:2", "gpu", "gpu:0.5", "cpu:8")]
    [True, False, False, False]
    """
    return any(one.kind != "cpu" and one.count > 1 for one in pending.request.alternatives)


def was_migrated(pending: PendingRequest) -> bool:
    """Whether it is a small request that has held devices before, and so can have been moved."""
    return bool(pending.attained_service_s) and not pending.gang and not is_large(pending)


def plan_migrations(policy: str) -> MakePreemptionPlan:
    """Small requests are moved where the engine can take leases back.

    :param policy: its name, for those that are moved
    """

    def make_room(fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> PreemptionPlan:
        if not snapshot.can_preempt:
            return NoPreemption(fleet, snapshot, now)
        return MigrationPlan(policy, fleet, snapshot, now)

    return make_room


@dataclass(frozen=True, slots=True)
class _MigrationOption:
    """A worker on which the large request fits once some leases there have ended."""

    number: int
    alternative: Alternative
    victims: tuple[VictimUnit, ...]
    leaving: tuple[Lease, ...]
    """Told to end before."""

    @property
    def price(self) -> tuple[float, int, int]:
        return sum(one.lost_device_s for one in self.victims), len(self.victims), self.number

    @property
    def leases(self) -> list[Lease]:
        return [*self.leaving, *(victim.leases[0] for victim in self.victims)]


class ReservationsSparingMigrated(ReservationsByNeed):
    """What the head needs is kept for it, but not from those that were moved: they had their devices already."""

    def __init__(self, fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        super().__init__(fleet, snapshot, now)
        self._can_move = snapshot.can_preempt

    def against(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What is kept for the head, from all others."""
        return None if self._can_move and was_migrated(pending) else super().against(pending)


class MigrationPlan:
    """Room that is made during one decision."""

    def __init__(self, policy: str, fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        self._policy = policy
        self._fleet = fleet
        self._snapshot = snapshot
        self._now = now
        numbers = {seat.worker.id: number for number, seat in enumerate(fleet.entries)}
        self._leaving: defaultdict[int, list[Lease]] = defaultdict(list)
        for lease in snapshot.leases:
            if lease.state is LeaseState.PREEMPTED and lease.worker_id in numbers:
                self._leaving[numbers[lease.worker_id]].append(lease)
        self._may_move = not self._leaving
        self._do_others_wait = False
        self._hopeless: set[tuple[str, int]] = set()
        self._preemptions: tuple[Preempt, ...] = ()
        self.until: datetime | None = None
        """When a request that could be moved then has had its devices for the minimum time."""

    def preemptions(self) -> Sequence[Preempt]:
        """Who is moved."""
        return self._preemptions

    def covers(self, unit: Sequence[PendingRequest]) -> bool:
        """No: where no room can be made, what the request needs is kept for it."""
        return False

    def make(self, unit: Sequence[PendingRequest], keep: ReservedCapacity | None) -> Reason | None:
        """Why a large request waits for which others are moved; None where that is not possible."""
        pending = unit[0]
        if len(unit) > 1 or not is_large(pending):
            self._do_others_wait = True
        if self._do_others_wait:
            return None
        return self._first(pending, self._awaited(pending, keep), keep) or self._move(pending, keep)

    def _move(self, pending: PendingRequest, keep: ReservedCapacity | None) -> Reason | None:
        key = (pending.request.fingerprint, pending.request.priority.rank)
        if not self._may_move or key in self._hopeless:
            return None
        reason = self._first(pending, self._movable(pending, keep), keep)
        if reason is None:
            self._hopeless.add(key)
        else:
            self._may_move, self.until = False, None
        return reason

    def _first(
        self, pending: PendingRequest, options: Iterable[_MigrationOption], keep: ReservedCapacity | None
    ) -> Reason | None:
        for option in options:
            places = self._try(pending, option, keep)
            if places is not None:
                return self._carry_out(pending, option, *places)
        return None

    # -- where it could be -----------------------------------------------------------------------------------------

    def _awaited(self, pending: PendingRequest, keep: ReservedCapacity | None) -> Iterable[_MigrationOption]:
        """Where it fits as soon as those have ended that were told to."""
        for alternative in pending.request.alternatives:
            for number, leases in sorted(self._leaving.items()):
                outlook = FutureCapacity(self._fleet, number)
                if outlook.fits(alternative, _without(outlook, leases), keep):
                    yield _MigrationOption(number, alternative, (), tuple(leases))

    @cached_property
    def _small(self) -> Mapping[Rank, Mapping[int, list[VictimUnit]]]:
        """Class → worker → the small requests there that may be moved now, and find a place as the fleet is.

        Who finds none, or is none of these, is left out first: of a full fleet that is nearly everyone.
        """
        found: defaultdict[Rank, defaultdict[int, list[VictimUnit]]] = defaultdict(lambda: defaultdict(list))
        places = FitCache(self._fleet)
        holders = self._snapshot.holders
        leases = tuple(
            lease
            for lease in self._snapshot.leases
            if (holder := holders.get(lease.request_id)) is not None
            and not (holder.gang or is_large(holder))
            and places.has_any(holder.request)
        )
        snapshot = replace(self._snapshot, leases=leases)
        for one in victim_units(PreemptionRules(_priority_rank, MIN_HELD_S), self._fleet, snapshot, self._now):
            if one.protected_until <= self._now:
                found[one.rank][one.workers[0]].append(one)
            elif self.until is None or one.protected_until < self.until:
                self.until = one.protected_until
        return found

    def _movable(self, pending: PendingRequest, keep: ReservedCapacity | None) -> Iterable[_MigrationOption]:
        """Where it fits once small ones of its class have been moved, the cheapest first."""
        by_worker = self._small.get((float(pending.request.priority.rank),), {})
        for alternative in pending.request.alternatives:
            found = (self._option(alternative, number, small, keep) for number, small in by_worker.items())
            yield from sorted((one for one in found if one is not None), key=lambda one: one.price)[:MAX_TRIALS]

    def _option(
        self, alternative: Alternative, number: int, small: Sequence[VictimUnit], keep: ReservedCapacity | None
    ) -> _MigrationOption | None:
        shape = self._fleet.states[number].shape
        if not self._fleet.matcher.feasibility(alternative, shape).is_servable:
            return None
        outlook = FutureCapacity(self._fleet, number)
        held = _without(outlook, [one.leases[0] for one in small])
        if not outlook.fits(alternative, held, keep):
            return None
        victims: list[VictimUnit] = []
        for one in sorted(small, key=lambda one: (-one.lost_device_s, one.id)):
            beside = added(held, outlook.taken(one.leases[0].claims))
            if outlook.fits(alternative, beside, keep):
                held = beside
            else:
                victims.append(one)
        if not 0 < len(victims) <= MAX_MOVES:
            return None
        return _MigrationOption(number, alternative, tuple(victims), ())

    # -- whether all go on -----------------------------------------------------------------------------------------

    def _try(
        self, pending: PendingRequest, option: _MigrationOption, keep: ReservedCapacity | None
    ) -> tuple[Fit, list[tuple[int, Fit]]] | None:
        """Where the large request and those that go will be; None unless all that are to be moved find places at once,
        and those that wait since they were moved, if they find some now."""
        fleet = self._fleet
        outlook = FutureCapacity(fleet, option.number)
        held = _without(outlook, option.leases)
        fit = outlook.fit(option.alternative, held, keep)
        if fit is None:
            return None
        going = {lease.request_id: lease for lease in option.leases}
        waiting = [one for one in self._snapshot.pending if was_migrated(one)]
        must = {one.leases[0].request_id for one in option.victims}
        must |= {one.id for one in waiting if best_placement(fleet, one.request, None)}
        before = {option.number: fleet.states[option.number]}
        soon = fleet.matcher.state(before[option.number].shape, before[option.number].is_lost, tuple(held))
        fleet.put(option.number, fleet.matcher.taken(soon, fit, self._now.timestamp()))
        behind = [
            one
            for one in self._snapshot.pending
            if is_large(one) and not one.gang and _queue_key(pending) < _queue_key(one)
        ]
        holders = [self._snapshot.holders[one] for one in going if one in self._snapshot.holders]
        places: list[tuple[int, Fit]] = []
        for one, beside in (
            *((one, keep) for one in sorted(behind, key=_queue_key)),
            *((one, None) for one in sorted((*holders, *waiting), key=_queue_key)),
        ):
            place = best_placement(fleet, one.request, beside)
            if place is not None:
                number, found = place[1:]
                before.setdefault(number, fleet.states[number])
                fleet.take(number, found, self._now)
                must.discard(one.id)
                if one.id in going:
                    places.append((number, found))
            elif one.id in must:
                break
        for number, state in before.items():
            fleet.put(number, state)
        return None if must else (fit, places)

    def _carry_out(
        self, pending: PendingRequest, option: _MigrationOption, fit: Fit, places: Sequence[tuple[int, Fit]]
    ) -> Reason:
        outlook = FutureCapacity(self._fleet, option.number)
        outlook.held = _without(outlook, option.leases)
        outlook.promise(fit)
        for number, found in places:
            self._fleet.take(number, found, self._now)
        self._preemptions += tuple(
            Preempt(
                lease.id,
                lease.token,
                lease.request_id,
                pending.id,
                f"{self._policy}: moves to other devices, so that {pending.id} finds several on one worker",
            )
            for victim in option.victims
            for lease in victim.leases
        )
        where, moves = self._fleet.entries[option.number].worker.id, len(option.leases)
        whose = "1 request moves" if moves == 1 else f"{moves} requests move"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), f"devices of worker {where}, from which {whose}")


def _without(outlook: FutureCapacity, leases: Iterable[Lease]) -> list[Allocation]:
    held = outlook.held
    for lease in leases:
        held = freed(held, outlook.taken(lease.claims))
    return held


def _queue_key(pending: PendingRequest) -> tuple[int, int, datetime, str]:
    """Where in the queue they stand among themselves."""
    return pending.request.priority.rank, -pending.weight, pending.submitted_at, pending.id


def _priority_rank(progress: RequestProgress, estimates: Estimates) -> Rank | None:
    """The class of a request that may be moved."""
    return (float(progress.pending.request.priority.rank),)
