"""Makes room for requests that fit nowhere, by taking leases back.

For a request in the order of the queue, the first of these that is possible:

1. It fits where leases end that are on their way out already: those are awaited.
2. It fits on a worker once other work there has been taken back: on each worker, the least dispensable work
   is put back as long as the request fits beside it, and what is left over are the victims. No victim could be
   spared then. The worker with the most dispensable victims is chosen. Where equal requests stand behind it that
   would share what is taken back, the loss counts for each request that is served (as in the greedy algorithm for
   weighted set cover, Chvátal 1979): one job on eight devices goes before eight jobs that lose more together.
3. The same with work that has not run for its minimum time yet: then it is waited for, and nothing is taken back.

In each case what the request is to get is kept for it, so that the next decision gives it just that, and
later requests neither take it nor have the same work taken back again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hetero_airflow.matching.future_capacity import ClaimedAmounts, FutureCapacity, added, freed
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Preempt, Reason, ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.equivalence_classes import EquivalenceClasses
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank, VictimUnit, victim_units
from hetero_airflow.policies.core.request_progress import waiting_progress
from hetero_airflow.policies.core.reservation import MakePreemptionPlan, NoPreemption, PreemptionPlan
from hetero_airflow.units import MILLI_PER_DEVICE

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class _VictimOption:
    """One worker on which room can be made."""

    number: int
    fit: Fit
    victims: tuple[VictimUnit, ...]
    asked: float
    """Devices that one request takes."""
    wanted: int
    """How many equal requests wait, this one counted in."""
    spared: tuple[VictimUnit, ...] = ()
    """Victims of earlier requests that can stay after all."""

    @property
    def price(self) -> tuple[Rank, float, int, int]:
        """What is compared: how indispensable the first victim is, the losses a request, how many, which worker."""
        first = min(victim.rank for victim in self.victims)
        loss = sum(victim.lost_device_s for victim in self.victims)
        served = max(1, min(self.wanted, int(sum(victim.devices for victim in self.victims) / self.asked)))
        return tuple(-part for part in first), loss / served, len(self.victims), self.number


def plan_preemptions(policy: str, preemption: PreemptionRules) -> MakePreemptionPlan:
    """Room is made by taking leases back as this preemption says, where that is possible at all.

    :param policy: its name, for those whose leases are taken back
    """

    def make_room(fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> PreemptionPlan:
        if not snapshot.can_preempt:
            return NoPreemption(fleet, snapshot, now)
        return LeastLossPreemption(policy, preemption, fleet, snapshot, now)

    return make_room


class LeastLossPreemption:
    """Room that is made during one decision."""

    def __init__(
        self, policy: str, preemption: PreemptionRules, fleet: WorkerIndex, snapshot: Snapshot, now: datetime
    ) -> None:
        self._policy = policy
        self._preemption = preemption
        self._fleet = fleet
        self._snapshot = snapshot
        self._now = now
        self._outlooks: dict[int, FutureCapacity] = {}
        self._leaving: dict[int, list[str]] = {}
        """Worker → whose leases there were taken back before, or are now."""
        self._victims: dict[VictimUnit, PendingRequest] = {}
        self._hopeless: set[str] = set()
        self._equals = EquivalenceClasses(snapshot.pending if preemption.is_priority_class else ())
        """Who else may take back what one request may: of other ranks than classes, not all that ask for the same."""
        self._by_worker: dict[int, list[VictimUnit]] | None = None
        self._highest: Rank | None = None
        self.until: datetime | None = None
        """When more room may be made though nothing but the time has changed."""
        numbers = {seat.worker.id: number for number, seat in enumerate(fleet.entries)}
        for lease in snapshot.leases:
            if lease.state is LeaseState.PREEMPTED and lease.worker_id in numbers:
                number = numbers[lease.worker_id]
                outlook = self._outlook(number)
                outlook.held = freed(outlook.held, outlook.taken(lease.claims))
                self._leaving.setdefault(number, []).append(lease.request_id)

    def preemptions(self) -> list[Preempt]:
        """The leases to take back, in the order in which that was decided."""
        return [
            Preempt(
                lease.id,
                lease.token,
                lease.request_id,
                pending.id,
                f"{self._policy}: {pending.id} is to have its devices",
            )
            for holding, pending in self._victims.items()
            for lease in holding.leases
        ]

    def covers(self, unit: Sequence[PendingRequest]) -> bool:
        """Whether what requests behind it get gives way to it."""
        rank = self._preemption.rank(waiting_progress(unit[0], self._now), self._snapshot.estimates)
        return self._preemption.is_queue_order and len(unit) == 1 and rank is not None

    def make(self, unit: Sequence[PendingRequest], keep: ReservedCapacity | None) -> Reason | None:
        """Why a request waits for which room is made, or None where none can be.

        Gangs of more than one wait for work to end.
        """
        if len(unit) > 1:
            return None
        pending = unit[0]
        if self._preemption.period_s is not None:
            self._ask_again(self._now + timedelta(seconds=self._preemption.period_s))
        return self._await(pending, keep) or self._take_back(pending, keep)

    # -- what is on its way out ----------------------------------------------------------------------------------------

    def _await(self, pending: PendingRequest, keep: ReservedCapacity | None) -> Reason | None:
        best: tuple[float, int, Fit] | None = None
        for alternative in pending.request.alternatives:
            for number in sorted(self._leaving):
                outlook = self._outlook(number)
                if outlook.fits(alternative, outlook.held, keep):
                    fit = outlook.fit(alternative, outlook.held, keep)
                    if fit is not None and (best is None or fit.score > best[0]):
                        best = (fit.score, number, fit)
            if best is not None and pending.request.is_ordered:
                break
        if best is None:
            return None
        _, number, fit = best
        self._outlook(number).promise(fit)
        return self._freed_reason(pending, number)

    # -- what is taken back now ----------------------------------------------------------------------------------------

    def _take_back(self, pending: PendingRequest, keep: ReservedCapacity | None) -> Reason | None:
        rank = self._preemption.rank(waiting_progress(pending, self._now), self._snapshot.estimates)
        if rank is None:
            return None
        if self._is_hopeless(pending, rank):
            return None
        for is_patient in (False, True):
            option = self._cheapest(pending, rank, keep, is_patient)
            if option is not None:
                return self._wait_for(pending, option) if is_patient else self._carry_out(pending, option)
        self._hopeless.add(pending.request.fingerprint)
        return None

    def _is_hopeless(self, pending: PendingRequest, rank: Rank) -> bool:
        """Whether nobody is of greater rank, or an equal request found no room before."""
        if self._by_worker is None:
            self._by_worker = {}
            found = victim_units(self._preemption, self._fleet, self._snapshot, self._now)
            for holding in found:
                for number in holding.workers:
                    self._by_worker.setdefault(number, []).append(holding)
            self._highest = found[-1].rank if found else None
        return self._highest is None or rank >= self._highest or pending.request.fingerprint in self._hopeless

    def _cheapest(
        self, pending: PendingRequest, rank: Rank, keep: ReservedCapacity | None, is_patient: bool
    ) -> _VictimOption | None:
        """The best option, with `is_patient` also with work that has not run for its minimum time."""
        found: list[_VictimOption] = []
        wanted = 1 + self._equals.behind(pending)
        for alternative in pending.request.alternatives:
            for number, present in (self._by_worker or {}).items():
                takeable = [
                    one for one in present if one.rank > rank and (is_patient or one.protected_until <= self._now)
                ]
                option = self._option(alternative, wanted, number, takeable, keep)
                if option is not None:
                    found.append(option)
            if found and pending.request.is_ordered:
                break
        if is_patient:
            return min(found, key=lambda option: (_until(option), option.price), default=None)
        return min(found, key=lambda option: option.price, default=None)

    def _option(
        self,
        alternative: Alternative,
        wanted: int,
        number: int,
        takeable: Sequence[VictimUnit],
        keep: ReservedCapacity | None,
    ) -> _VictimOption | None:
        """Whom of those that may be taken back the alternative needs to be gone from a worker.

        :param wanted: how many equal requests wait, this one counted in
        """
        asked = alternative.count * alternative.share_milli / MILLI_PER_DEVICE
        takeable = sorted(takeable, key=lambda one: one.dispensable_for(asked * wanted))
        running = [one for one in takeable if one not in self._victims]
        if not running:
            return None
        outlook = self._outlook(number)
        held = outlook.held
        for one in running:
            held = freed(held, self._taken(number, one))
        if not outlook.fits(alternative, held, keep):
            return None
        victims: list[VictimUnit] = []
        spared: list[VictimUnit] = []
        for one in takeable:
            taken = self._taken(number, one)
            if one in self._victims and (len(one.workers) > 1 or not outlook.can_hold(held, taken)):
                continue
            beside = added(held, taken)
            if outlook.fits(alternative, beside, keep):
                held = beside
                if one in self._victims:
                    spared.append(one)
            elif one not in self._victims:
                victims.append(one)
        fit = outlook.fit(alternative, held, keep)
        options = [_VictimOption(number, fit, tuple(victims), asked, wanted, tuple(spared))] if fit and victims else []
        if len(victims) > 1:
            for one in running:
                without = freed(outlook.held, self._taken(number, one))
                if one.rank == victims[0].rank and outlook.fits(alternative, without, keep):
                    fit = outlook.fit(alternative, without, keep)
                    options += [_VictimOption(number, fit, (one,), asked, wanted)] if fit else []
        return min(options, key=lambda option: option.price, default=None)

    def _carry_out(self, pending: PendingRequest, option: _VictimOption) -> Reason:
        for spared in option.spared:
            del self._victims[spared]
            outlook = self._outlook(option.number)
            outlook.held = added(outlook.held, self._taken(option.number, spared))
        for victim in option.victims:
            self._victims[victim] = pending
            for number in victim.workers:
                outlook = self._outlook(number)
                outlook.held = freed(outlook.held, self._taken(number, victim))
                self._leaving.setdefault(number, []).append(victim.leases[0].request_id)
        self._outlook(option.number).promise(option.fit)
        return self._freed_reason(pending, option.number)

    def _wait_for(self, pending: PendingRequest, option: _VictimOption) -> Reason:
        self._outlook(option.number).claim(option.fit)
        self._ask_again(_until(option))
        whose = _named([victim.leases[0].request_id for victim in option.victims])
        where = self._fleet.entries[option.number].worker.id
        found = f"devices of worker {where}, which {whose} keeps at least until {_until(option):%H:%M:%S} UTC"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), found)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _ask_again(self, at: datetime) -> None:
        self.until = at if self.until is None else min(at, self.until)

    def _outlook(self, number: int) -> FutureCapacity:
        outlook = self._outlooks.get(number)
        if outlook is None:
            outlook = self._outlooks[number] = FutureCapacity(self._fleet, number)
        outlook.catch_up()
        return outlook

    def _taken(self, number: int, holding: VictimUnit) -> ClaimedAmounts:
        worker_id = self._fleet.entries[number].worker.id
        claims = [claim for lease in holding.leases if lease.worker_id == worker_id for claim in lease.claims]
        return self._outlook(number).taken(claims)

    def _freed_reason(self, pending: PendingRequest, number: int) -> Reason:
        where = self._fleet.entries[number].worker.id
        found = f"devices of worker {where}, which are being freed by {_named(self._leaving[number])}"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), found)


def _until(option: _VictimOption) -> datetime:
    return max(victim.protected_until for victim in option.victims)


def _named(request_ids: Sequence[str]) -> str:
    more = len(request_ids) - _MAX_NAMED
    return ", ".join(request_ids[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
