"""Defragmentation: small requests that run are migrated to other devices, so that large requests fit.

A request is migrated only if it can go on at once. To check this, the next decision is simulated: the large request
gets its place, the large requests behind it take what fits them, and then each migrated request must find a place. The
next decision has the same result, because its queue (`consolidation.large_first`) has the large requests first and the
migrated ones next, nothing is reserved from migrated requests, and a migration starts only if all requests ahead in the
queue are large. Promised devices are not given to later requests.

It is bounded: one large request at a time gets at most `MAX_MOVES` migrations, and a request keeps the devices that it
got for a minimum time. Of the workers on which the large request could fit, the one is chosen that costs the fewest
device-seconds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from hetero_airflow.matching.future_capacity import FutureCapacity, added, freed
from hetero_airflow.matching.matcher import Fit, OccupancyState
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Preempt, Reason, ReasonCode
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.backfill import HeadReservation
from hetero_airflow.policies.core.list_scheduler import best_placement
from hetero_airflow.policies.core.preemption import (
    PreemptionRules,
    Rank,
    VictimUnit,
    class_rank_of,
    preempt,
    victim_units,
)
from hetero_airflow.policies.core.preemption_plan import CLASS_RULES, LeastLossPreemption
from hetero_airflow.policies.core.queue_order import queue_key

MIN_HELD_S = 70.0
"""A request that got its devices is not migrated for this time: ten times what it costs a small request."""
MAX_MOVES = 16
MAX_TRIALS = 16
"""Workers that are tried for one large request, the cheapest first."""

Placements = list[tuple[int, Fit]]
"""(worker, fit) of each migrated request."""


def is_large(pending: PendingRequest) -> bool:
    """Whether it asks for several accelerators of one worker.

    >>> from hetero_airflow.testing import a_pending
    >>> [is_large(a_pending(device=text)) for text in ("gpu:2", "gpu", "gpu:0.5", "cpu:8")]
    [True, False, False, False]
    """
    return any(alternative.kind != "cpu" and alternative.count > 1 for alternative in pending.request.alternatives)


def was_migrated(pending: PendingRequest) -> bool:
    """Whether it is a small request that has held devices before: only such a request can have been migrated."""
    return bool(pending.attained_service_s) and not pending.gang and not is_large(pending)


@dataclass(frozen=True, slots=True)
class _MigrationOption:
    """A worker on which the large request fits once some leases there have ended."""

    number: int
    alternative: Alternative
    victims: tuple[VictimUnit, ...]
    ending: tuple[Lease, ...]
    """Leases that were taken back before."""

    @property
    def price(self) -> tuple[float, int, int]:
        return sum(victim.lost_device_s for victim in self.victims), len(self.victims), self.number

    @property
    def leases(self) -> list[Lease]:
        return [*self.ending, *(victim.leases[0] for victim in self.victims)]


class ReservationsSparingMigrated(HeadReservation):
    """Reserves what the head could use on all workers, but not from migrated requests: they had their devices already.

    Where no request can be migrated, it reserves as for other policies. On one worker only, small requests fill the
    others: on openb's pods (four runs of `bench_schedule_replay` on other seeds), 40 to 86 % of the large requests
    never start, against 0 to 29 %.
    """

    def __init__(self, index: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        super().__init__(index, snapshot, now)
        self._can_migrate = snapshot.can_preempt
        self._is_on_one_worker = not self._can_migrate

    def reserved_from(self, pending: PendingRequest) -> ReservedCapacity | None:
        """What is reserved for the head; nothing for a migrated request."""
        return None if self._can_migrate and was_migrated(pending) else super().reserved_from(pending)


class MigrationPlan:
    """The migrations of one decision.

    :param policy: its name, for the cause that a migrated request is given
    """

    def __init__(self, policy: str, index: WorkerIndex, snapshot: Snapshot, now: datetime) -> None:
        self._policy = policy
        self._index = index
        self._snapshot = snapshot
        self._now = now
        self._ending: defaultdict[int, list[Lease]] = defaultdict(list)
        """Worker → its leases that were taken back before."""
        for lease in snapshot.leases:
            if lease.state is LeaseState.PREEMPTED and lease.worker_id in index.numbers:
                self._ending[index.numbers[lease.worker_id]].append(lease)
        self._by_class = LeastLossPreemption(policy, CLASS_RULES, index, snapshot, now)
        self._may_migrate = not self._ending
        self._do_others_wait = False
        self._hopeless: set[tuple[str, int]] = set()
        self._preemptions: tuple[Preempt, ...] = ()
        self._movable_at: datetime | None = None
        """When a small request becomes movable because it has had its devices for the minimum time."""

    @property
    def until(self) -> datetime | None:
        """When more may be preempted although nothing but the time has changed."""
        return min((at for at in (self._movable_at, self._by_class.until) if at is not None), default=None)

    def preemptions(self) -> Sequence[Preempt]:
        """The leases of the requests that are migrated, and those that are taken back for higher classes."""
        return (*self._preemptions, *self._by_class.preemptions())

    def plan_for(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """Why a request waits for which others are migrated, or lose their leases; None where that is not possible."""
        reason = self._plan_migration(unit, reserved)
        if reason is None and (reason := self._by_class.plan_for(unit, reserved)) is not None:
            self._may_migrate = False
        return reason

    def _plan_migration(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """Why a large request waits for which others are migrated; None where that is not possible."""
        pending = unit[0]
        if len(unit) > 1 or not is_large(pending):
            self._do_others_wait = True
        if self._do_others_wait:
            return None
        options = self._ending_options(pending, reserved)
        return self._carry_out_first(pending, options, reserved) or self._migrate(pending, reserved)

    def _migrate(self, pending: PendingRequest, reserved: ReservedCapacity | None) -> Reason | None:
        key = (pending.request.fingerprint, pending.request.priority.rank)
        if not self._may_migrate or key in self._hopeless:
            return None
        reason = self._carry_out_first(pending, self._migration_options(pending, reserved), reserved)
        if reason is None:
            self._hopeless.add(key)
        else:
            self._may_migrate, self._movable_at = False, None
        return reason

    def _carry_out_first(
        self, pending: PendingRequest, options: Iterable[_MigrationOption], reserved: ReservedCapacity | None
    ) -> Reason | None:
        for option in options:
            trial = self._try(pending, option, reserved)
            if trial is not None:
                return self._carry_out(pending, option, *trial)
        return None

    def _ending_options(self, pending: PendingRequest, reserved: ReservedCapacity | None) -> Iterable[_MigrationOption]:
        """Where it fits as soon as the leases have ended that were taken back before."""
        for alternative in pending.request.alternatives:
            for number, leases in sorted(self._ending.items()):
                capacity = FutureCapacity(self._index, number)
                if capacity.fits(alternative, _without(capacity, leases), reserved):
                    yield _MigrationOption(number, alternative, (), tuple(leases))

    @cached_property
    def _movable(self) -> Mapping[Rank, Mapping[int, list[VictimUnit]]]:
        """Priority class → worker → the small requests there that may be migrated now and could run elsewhere.

        Others are left out first: in a full cluster that is nearly every request.
        """
        movable: defaultdict[Rank, defaultdict[int, list[VictimUnit]]] = defaultdict(lambda: defaultdict(list))
        fits_anywhere = fit_check(self._index)
        holders = self._snapshot.holders
        leases = tuple(
            lease
            for lease in self._snapshot.leases
            if (holder := holders.get(lease.request_id)) is not None
            and not (holder.gang or is_large(holder))
            and fits_anywhere(holder.request)
        )
        snapshot = replace(self._snapshot, leases=leases)
        for unit in victim_units(PreemptionRules(class_rank_of, MIN_HELD_S), self._index, snapshot, self._now):
            if unit.protected_until <= self._now:
                movable[unit.rank][unit.workers[0]].append(unit)
            elif self._movable_at is None or unit.protected_until < self._movable_at:
                self._movable_at = unit.protected_until
        return movable

    def _migration_options(
        self, pending: PendingRequest, reserved: ReservedCapacity | None
    ) -> Iterable[_MigrationOption]:
        """Where it fits once small requests of its priority class are migrated, the cheapest first."""
        by_worker = self._movable.get((float(pending.request.priority.rank),), {})
        for alternative in pending.request.alternatives:
            options = (self._option(alternative, number, units, reserved) for number, units in by_worker.items())
            yield from sorted(filter(None, options), key=lambda option: option.price)[:MAX_TRIALS]

    def _option(
        self, alternative: Alternative, number: int, units: Sequence[VictimUnit], reserved: ReservedCapacity | None
    ) -> _MigrationOption | None:
        shape = self._index.states[number].shape
        if not self._index.matcher.feasibility(alternative, shape).is_servable:
            return None
        capacity = FutureCapacity(self._index, number)
        held = _without(capacity, [unit.leases[0] for unit in units])
        if not capacity.fits(alternative, held, reserved):
            return None
        victims: list[VictimUnit] = []
        for unit in sorted(units, key=lambda unit: (-unit.lost_device_s, unit.id)):
            beside = added(held, capacity.claimed_amounts(unit.leases[0].claims))
            if capacity.fits(alternative, beside, reserved):
                held = beside
            else:
                victims.append(unit)
        if not 0 < len(victims) <= MAX_MOVES:
            return None
        return _MigrationOption(number, alternative, tuple(victims), ())

    def _try(
        self, pending: PendingRequest, option: _MigrationOption, reserved: ReservedCapacity | None
    ) -> tuple[Fit, Placements] | None:
        """The placement of the large request and those of the migrated ones; None if one of them finds no place.

        Requests that were migrated before and still wait must find a place too, if there is one for them now.
        """
        index = self._index
        capacity = FutureCapacity(index, option.number)
        held = _without(capacity, option.leases)
        fit = capacity.fit(option.alternative, held, reserved)
        if fit is None:
            return None
        pending_migrated = [request for request in self._snapshot.pending if was_migrated(request)]
        must = {victim.leases[0].request_id for victim in option.victims}
        must |= {request.id for request in pending_migrated if best_placement(index, request.request, None)}
        before = {option.number: index.states[option.number]}
        state = index.matcher.state(before[option.number].shape, before[option.number].is_lost, tuple(held))
        index.put(option.number, index.matcher.state_after(state, fit, self._now.timestamp()))
        migrated = {lease.request_id for lease in option.leases}
        placements: Placements = []
        for request, request_reserved in self._next_queue(pending, option, pending_migrated, reserved):
            best = best_placement(index, request.request, request_reserved)
            if best is not None:
                _, number, request_fit = best
                before.setdefault(number, index.states[number])
                index.take(number, request_fit, self._now)
                must.discard(request.id)
                if request.id in migrated:
                    placements.append((number, request_fit))
            elif request.id in must:
                break
        for number, state in before.items():
            index.put(number, state)
        return None if must else (fit, placements)

    def _next_queue(
        self,
        pending: PendingRequest,
        option: _MigrationOption,
        pending_migrated: Sequence[PendingRequest],
        reserved: ReservedCapacity | None,
    ) -> Iterable[tuple[PendingRequest, ReservedCapacity | None]]:
        """The queue of the next decision behind the large request, and what is reserved from each request."""
        behind = [
            request
            for request in self._snapshot.pending
            if is_large(request) and not request.gang and queue_key(pending) < queue_key(request)
        ]
        holders = map(self._snapshot.holders.get, {lease.request_id for lease in option.leases})
        migrated = [holder for holder in holders if holder is not None]
        yield from ((request, reserved) for request in sorted(behind, key=queue_key))
        yield from ((request, None) for request in sorted((*migrated, *pending_migrated), key=queue_key))

    def _carry_out(self, pending: PendingRequest, option: _MigrationOption, fit: Fit, placements: Placements) -> Reason:
        capacity = FutureCapacity(self._index, option.number)
        capacity.held = _without(capacity, option.leases)
        capacity.promise(fit)
        for number, migrated_fit in placements:
            self._index.take(number, migrated_fit, self._now)
        cause = f"{self._policy}: moves to other devices, so that {pending.id} gets several devices of one worker"
        self._preemptions += tuple(
            preempt(lease, pending, cause) for victim in option.victims for lease in victim.leases
        )
        worker_id, moves = self._index.entries[option.number].worker.id, len(option.leases)
        movers = "1 request moves" if moves == 1 else f"{moves} requests move"
        found = f"devices of worker {worker_id}, from which {movers}"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), found)


def _without(capacity: FutureCapacity, leases: Iterable[Lease]) -> list[Allocation]:
    """What is held on the worker once these leases have ended."""
    held = capacity.held
    for lease in leases:
        held = freed(held, capacity.claimed_amounts(lease.claims))
    return held


def fit_check(index: WorkerIndex) -> Callable[[DeviceRequest], bool]:
    """Whether a request fits on a worker; valid until the index changes.

    This costs less than a ranking, which scores each placement: nothing is scored, equal alternatives are checked once,
    and only workers with a partly free accelerator are checked for accelerators.
    """
    workers = [(number, index.states[number]) for number in index.first_workers()]
    with_free_accelerator = [(number, state) for number, state in workers if _has_free_accelerator(state)]
    known: dict[str, bool] = {}

    def fits(alternative: Alternative) -> bool:
        if alternative.key not in known:
            known[alternative.key] = any(
                FutureCapacity(index, number).fits(alternative, list(state.held), None)
                for number, state in (workers if alternative.kind == "cpu" else with_free_accelerator)
            )
        return known[alternative.key]

    return lambda request: any(map(fits, request.alternatives))


def _has_free_accelerator(state: OccupancyState) -> bool:
    """Whether one of its accelerators is not fully leased."""
    amounts = enumerate(zip(state.held, state.shape.capacity, strict=True))
    return any(held.share_milli < capacity[0] for position, (held, capacity) in amounts if position != state.shape.cpu)
