"""Takes leases back for requests that fit nowhere, with the least loss.

For each request in the order of the queue it takes the first of these that is possible:

1. The request fits where leases are already ending: it waits for them.
2. It fits on a worker if other work there is taken back. On each worker the running work is checked, the most important
   first. A piece of work stays if the request still fits beside it; otherwise it is a victim. So every victim is
   necessary. The worker with the least important victims is chosen. If equal requests stand behind the request
   and would share the freed devices, the loss is divided by the requests that are served (as in the greedy algorithm
   for weighted set cover, Chvátal 1979): one job on eight devices is taken back before eight jobs that lose more.
3. The same with work that has not had its minimum run time yet. Then the request waits for that time, and nothing is
   taken back now.

A gang does so for all its members or for none, with 1 and 2 only.

In each case the devices are withheld: the next decision gives the request exactly these, and later requests neither get
them nor take back the same work.
"""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from math import ceil
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from hetero_airflow.matching.future_capacity import ClaimedAmounts, FutureCapacity, added, freed
from hetero_airflow.matching.matcher import Fit, OccupancyState
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Preempt, Reason, ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.preemption import (
    Offer,
    PlacementNeed,
    PreemptionRules,
    Rank,
    VictimOption,
    VictimUnit,
    accepted,
    class_rank_of,
    preempt,
    priorities,
    victim_units,
)
from hetero_airflow.policies.core.queue_order import EquivalenceClasses
from hetero_airflow.policies.core.request_progress import waiting_progress

_MAX_NAMED = 3
_ROUNDED_DOWN = 1 - 1e-9
"""A bound is below what it bounds also after rounding."""


CLASS_RULES = PreemptionRules(class_rank_of, is_priority_class=True)
"""Leases of lower priority classes are taken back for higher ones."""

_Part = tuple[Rank, bool]
"""Of the running work: what is less important than this, and whether also what is protected."""

_PricedOption = tuple[tuple[datetime | None, Rank, float, int, int], VictimOption]
"""What is compared, and the option."""


class _Victims(NamedTuple):
    """What can be taken back on a worker for the requests of one rank."""

    number: int
    """Of the worker."""
    units: tuple[VictimUnit, ...]
    running: tuple[VictimUnit, ...]
    """Those of them that are not victims yet."""
    held: list[Allocation]
    """What is held there once they are gone."""


class _Site(NamedTuple):
    """A worker on which a need fits once all that can be taken back there is gone. The most promising goes first."""

    least: tuple[datetime | None, Rank, float]
    """No option there is better."""
    number: int
    victims: _Victims
    most_requests: int
    """More equal requests than these make no difference to what is taken back there."""


_OptionBySite = dict[tuple[int, int], tuple[_Site, _PricedOption | None]]
"""(worker, equal requests) → (what the option was found for, the best option there)."""

_T = TypeVar("_T", _Victims, _Site)


@dataclass(slots=True)
class _Trial:
    """What is planned for a gang, until it is known whether all members have a place."""

    is_kept: bool = False
    checkpoints: dict[int, tuple[OccupancyState, list[Allocation]]] = field(default_factory=dict)
    """Worker → its capacity before."""


class _ByWorker(Generic[_T]):
    """What was found for the workers that have it, also in its own order."""

    def __init__(self) -> None:
        self.seen: int | None = None
        """How many of the changes of workers are taken in; None: nothing was looked for yet."""
        self.found: dict[int, _T] = {}
        self.ordered: list[_T] = []

    def fill(self, found: Mapping[int, _T]) -> None:
        """Set what was found at first."""
        self.found, self.ordered = dict(found), sorted(found.values())

    def replace(self, number: int, found: _T | None) -> None:
        """Set what was found for a worker now."""
        before = self.found.pop(number, None)
        if before is not None:
            del self.ordered[bisect_left(self.ordered, before)]
        if found is not None:
            self.found[number] = found
            insort(self.ordered, found)


class LeastLossPreemption:
    """The preemptions of one decision.

    :param policy: its name, for the cause that a preempted request is given
    :param offers: leases that the policy takes back itself; in the snapshot they are preempted
    :param takers: the ids of the requests for which they are offered. Requests of higher classes may have them too
    """

    def __init__(
        self,
        policy: str,
        rules: PreemptionRules,
        index: WorkerIndex,
        snapshot: Snapshot,
        now: datetime,
        offers: Sequence[Offer] = (),
        takers: AbstractSet[str] = frozenset(),
    ) -> None:
        self._policy = policy
        self._rules = rules
        self._index = index
        self._snapshot = snapshot
        self._now = now
        self._capacities: dict[int, FutureCapacity] = {}
        self._ending: dict[int, list[str]] = {}
        """Worker → the requests whose leases there are taken back, now or before."""
        self._beneficiaries: dict[VictimUnit, PendingRequest] = {}
        """Victim → the request for which it is taken back."""
        self._hopeless: set[str] = set()
        """Fingerprints of requests for which no lease can be taken back."""
        self._hopeless_gangs: set[tuple[tuple[str, ...], ReservedCapacity | None]] = set()
        """(fingerprints, what is reserved) of gangs that could not get places for all members."""
        self._unfit: set[tuple[str, ReservedCapacity | None]] = set()
        """(fingerprint, what is reserved) of requests that fit nowhere where leases are ending."""
        self._offers, self._takers = offers, takers
        self._open_offers = deque(
            sorted((offer for offer in offers if not offer.is_unconditional), key=attrgetter("class_rank"))
        )
        self._offers_on: defaultdict[int, list[Offer]] = defaultdict(list)
        self._known_fits: dict[tuple[Hashable, ReservedCapacity | None], dict[int, tuple[int, Fit | None]]] = {}
        """Need → worker → (version of its capacity, where the need fits once leases have ended)."""
        self._known_victims: defaultdict[_Part, _ByWorker[_Victims]] = defaultdict(_ByWorker)
        self._known_sites: defaultdict[Hashable, _ByWorker[_Site]] = defaultdict(_ByWorker)
        self._known_options: defaultdict[Hashable, _OptionBySite] = defaultdict(dict)
        self._known_amounts: dict[tuple[int, str], ClaimedAmounts] = {}
        self._changes: list[int] = []
        """The workers whose capacity changed, in order."""
        self._index_version = index.version
        # ranks other than classes differ between equal requests, so these may not take back the same
        self._equals = EquivalenceClasses(snapshot.pending if rules.is_priority_class else ())
        self._trial: _Trial | None = None
        self.until: datetime | None = None
        """When more may be preempted although nothing but the time has changed."""
        for lease in snapshot.leases:
            if lease.state is LeaseState.PREEMPTED and lease.worker_id in index.numbers:
                number = self._index.numbers[lease.worker_id]
                capacity = self._capacity(number)
                capacity.free(capacity.claimed_amounts(lease.claims))
                self._ending.setdefault(number, []).append(lease.request_id)
        for offer in offers:
            self._offers_on[self._index.numbers[offer.lease.worker_id]].append(offer)

    def preemptions(self) -> list[Preempt]:
        """The leases to take back, in the order in which that was decided."""
        return accepted(self._offers, self._snapshot.estimates, self._now) + [
            preempt(lease, pending, self._cause(lease, pending))
            for unit, pending in self._beneficiaries.items()
            for lease in unit.leases
        ]

    def _cause(self, lease: Lease, pending: PendingRequest) -> str:
        """Why a lease is taken back."""
        text = f"{self._policy}: its devices go to {pending.id}"
        if self._rules.is_priority_class:
            text += f". {priorities(pending, self._snapshot.holders[lease.request_id])}"
        return text

    def plan_for(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """Why a request or gang waits for leases to end, or None where none can be taken back."""
        self._withdraw_offers(unit[0])
        if len(unit) > 1:
            return self._plan_gang(unit, reserved)
        return self._await_ending(unit[0], reserved) or self._take_back(unit[0], reserved)

    def _plan_gang(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """What `plan_for` does, for all members or for none.

        A gang waits for work to end if its members have to be close together or are unequal with several alternatives:
        then a place for each of them is not yet one for all. So it does while what it could take back is protected.
        """
        requests = [pending.request for pending in unit]
        first, rank = requests[0], self._rank(unit[0])
        are_equal = len({request.fingerprint for request in requests}) == 1
        topologies = [alternative.topology for request in requests for alternative in request.alternatives]
        is_free = all(topology is None or topology.level.is_within_worker for topology in topologies)
        if (
            rank is None
            or not is_free
            or not (are_equal or all(len(request.alternatives) == 1 for request in requests))
        ):
            return None
        key = tuple(request.fingerprint for request in requests), reserved
        if key in self._hopeless_gangs:
            return None
        for alternative in first.alternatives if are_equal else (None,):
            with self._all_or_none() as trial:
                reason = self._plan_members([_with_only(pending, alternative) for pending in unit], reserved)
                trial.is_kept = reason is not None
            if reason is not None:
                return reason
        self._hopeless_gangs.add(key)
        protected = (victim.protected_until for victim in self._units if victim.rank > rank)
        again_at = min((at for at in protected if at > self._now), default=None)
        if again_at is not None:
            self._decide_again_at(again_at)
        return None

    def _plan_members(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """Find a place for each member: where it fits now, where leases are ending, or where they can be taken back."""
        waits = []
        for pending in unit:
            if not self._promise_free(pending, reserved):
                waits.append(
                    self._await_ending(pending, reserved) or self._take_back(pending, reserved, with_protected=False)
                )
                if waits[-1] is None:
                    return None
        found = [reason.found for reason in waits if reason is not None]
        if not found:  # it does not fit for another reason
            return None
        texts = [*dict.fromkeys(found)]
        more = f" and of {len(texts) - 1} more" if len(texts) > 1 else ""
        asked = f"all {len(unit)} of gang {unit[0].gang}, {unit[0].request} each"
        return Reason(ReasonCode.PREEMPTING, asked, f"{texts[0]}{more}")

    def _promise_free(self, pending: PendingRequest, reserved: ReservedCapacity | None) -> bool:
        """Withhold a place for a request that is free now; whether there is one."""
        for alternative in pending.request.alternatives:
            place = self._index.ranking(alternative, reserved).first()
            if place is not None:
                number, fit = place
                self._changing(number).promise(fit)
                return True
        return False

    @contextmanager
    def _all_or_none(self) -> Iterator[_Trial]:
        """Take back what is planned in the block, unless it is to be kept."""
        self._trial = trial = _Trial()
        before = dict(self._beneficiaries), self._hopeless.copy(), self._unfit.copy()
        ending = {number: list(ids) for number, ids in self._ending.items()}
        beneficiaries = [offer.beneficiary for offer in self._offers]
        yield trial
        self._trial = None
        if trial.is_kept:
            return
        self._beneficiaries, self._hopeless, self._unfit = before
        self._ending = ending
        for offer, beneficiary in zip(self._offers, beneficiaries, strict=True):
            offer.beneficiary = beneficiary
        for number, checkpoint in trial.checkpoints.items():
            self._changing(number).restore(checkpoint)

    def _withdraw_offers(self, pending: PendingRequest) -> None:
        """Take what is offered to requests before this one in the queue, and not accepted, out of what is ending."""
        turn = pending.request.priority.rank, pending.id not in self._takers
        while self._open_offers and (self._open_offers[0].class_rank, False) < turn:
            offer = self._open_offers.popleft()
            number = self._index.numbers[offer.lease.worker_id]
            if offer.beneficiary is None:
                self._offers_on[number].remove(offer)
                self._ending[number].remove(offer.lease.request_id)
                capacity = self._changing(number)
                capacity.take(capacity.claimed_amounts(offer.lease.claims))

    def _accept_offers(self, pending: PendingRequest, number: int) -> None:
        """Accept those on a worker without which a request that waits there does not fit."""
        capacity = self._capacity(number)
        held = capacity.held
        for offer in reversed(self._offers_on.get(number, ())):
            if offer.beneficiary is None:
                amounts = capacity.claimed_amounts(offer.lease.claims)
                if capacity.can_hold(held, amounts):
                    held = added(held, amounts)
                else:
                    offer.beneficiary = pending

    def _rank(self, pending: PendingRequest) -> Rank | None:
        return self._rules.rank(waiting_progress(pending), self._snapshot.estimates)

    def _await_ending(self, pending: PendingRequest, reserved: ReservedCapacity | None) -> Reason | None:
        key = pending.request.fingerprint, reserved
        if not self._ending or key in self._unfit:
            return None
        best: tuple[float, int, Fit] | None = None
        for alternative in pending.request.alternatives:
            fit_by_worker = self._known_fits.setdefault((alternative.key, reserved), {})
            for number in sorted(self._ending):
                capacity = self._capacity(number)
                if number not in fit_by_worker or fit_by_worker[number][0] != capacity.version:
                    fit_by_worker[number] = capacity.version, _fit(capacity, alternative, capacity.held, reserved)
                fit = fit_by_worker[number][1]
                if fit is not None and (best is None or fit.score > best[0]):
                    best = (fit.score, number, fit)
            if best is not None and pending.request.is_ordered:
                break
        if best is None:
            self._unfit.add(key)
            return None
        _, number, fit = best
        self._changing(number).promise(fit)
        self._accept_offers(pending, number)
        return self._freed_reason(pending, number)

    def _take_back(
        self, pending: PendingRequest, reserved: ReservedCapacity | None, *, with_protected: bool = True
    ) -> Reason | None:
        if pending.request.fingerprint in self._hopeless or not self._units:
            return None
        rank = self._rank(pending)
        if rank is None or rank >= self._units[-1].rank:
            return None
        option = self._cheapest(pending, rank, reserved, with_protected=False)
        if option is not None:
            return self._carry_out(pending, option)
        if not with_protected:
            return None
        option = self._cheapest(pending, rank, reserved, with_protected=True)
        if option is not None:
            return self._wait_for(pending, option)
        self._hopeless.add(pending.request.fingerprint)
        return None

    @cached_property
    def _units(self) -> list[VictimUnit]:
        return victim_units(self._rules, self._index, self._snapshot, self._now)

    @cached_property
    def _units_on(self) -> Mapping[int, list[VictimUnit]]:
        """Worker → the units that hold devices there."""
        by_worker: dict[int, list[VictimUnit]] = {}
        for unit in self._units:
            for number in unit.workers:
                by_worker.setdefault(number, []).append(unit)
        return by_worker

    def _cheapest(
        self, pending: PendingRequest, rank: Rank, reserved: ReservedCapacity | None, *, with_protected: bool
    ) -> VictimOption | None:
        """The best option; with `with_protected` also with work that has not had its minimum run time."""
        best: _PricedOption | None = None
        for alternative in pending.request.alternatives:
            need = PlacementNeed(alternative, 1 + self._equals.count_behind(pending), reserved)
            part, key = (rank, with_protected), (alternative.key, reserved, rank, with_protected)
            known = self._known_options[key]
            for site in self._sites(need, part, key):
                if best is not None and site.least > best[0]:
                    break
                requests = min(need.requests, site.most_requests)
                found, option = known.get((site.number, requests), (None, None))
                if found is not site:
                    option = self._priced_option(need, site, with_protected=with_protected)
                    known[site.number, requests] = site, option
                if option is not None and (best is None or option[0] < best[0]):
                    best = option
            if best is not None and pending.request.is_ordered:
                break
        return best[1] if best is not None else None

    def _sites(self, need: PlacementNeed, part: _Part, key: Hashable) -> Sequence[_Site]:
        """The workers on which a need may find victims; equal keys share them."""
        self._changes += self._index.changed_since(self._index_version)
        self._index_version = self._index.version
        on_worker, sites = self._known_victims[part], self._known_sites[key]
        self._update(on_worker, self._units_on, partial(self._victims_on, part))
        self._update(sites, on_worker.found, partial(self._site, need, part, on_worker.found))
        return sites.ordered

    def _update(self, known: _ByWorker[_T], workers: Collection[int], look: Callable[[int], _T | None]) -> None:
        """Look again at those of the workers that changed, or at all of them the first time."""
        if known.seen is None:
            known.fill({number: found for number in workers if (found := look(number)) is not None})
        else:
            for number in dict.fromkeys(self._changes[known.seen :]):
                known.replace(number, look(number) if number in workers else None)
        known.seen = len(self._changes)

    def _victims_on(self, part: _Part, number: int) -> _Victims | None:
        """What can be taken back on a worker, if anything; the same until the worker changes."""
        rank, with_protected = part
        lower = (unit for unit in self._units_on[number] if unit.rank > rank)
        units = tuple(unit for unit in lower if with_protected or unit.protected_until <= self._now)
        running = tuple(unit for unit in units if unit not in self._beneficiaries)
        held = self._capacity(number).held
        for unit in running:
            held = freed(held, self._amounts(number, unit))
        return _Victims(number, units, running, held) if running else None

    def _site(self, need: PlacementNeed, part: _Part, on_worker: Mapping[int, _Victims], number: int) -> _Site | None:
        """The worker with what can be taken back there, if the need fits once all of it is gone."""
        victims = on_worker[number]
        if not self._capacity(number).fits(need.alternative, victims.held, need.reserved):
            return None
        _, with_protected = part
        possible_at = None
        if with_protected:  # asked only if what is not protected does not do
            times = [unit.protected_until for unit in victims.running]
            possible_at = min((at for at in times if at > self._now), default=min(times))
        first = max(unit.rank for unit in victims.running)
        loss = min(
            unit.lost_device_s * min(1.0, need.devices / unit.devices) for unit in victims.running if unit.rank == first
        )
        most_requests = ceil(sum(unit.devices for unit in victims.units) / need.devices)
        least = possible_at, tuple(-place for place in first), _ROUNDED_DOWN * loss
        return _Site(least, number, victims, most_requests)

    def _priced_option(self, need: PlacementNeed, site: _Site, *, with_protected: bool) -> _PricedOption | None:
        option = self._option(need, site.number, site.victims)
        return ((option.possible_at if with_protected else None, *option.price), option) if option else None

    def _option(self, need: PlacementNeed, number: int, on_worker: _Victims) -> VictimOption | None:
        """Which of the preemptible work the need requires to be gone from a worker."""
        capacity = self._capacity(number)
        preemptible = sorted(on_worker.units, key=lambda unit: unit.victim_order_for(need.devices * need.requests))
        running = [unit for unit in preemptible if unit not in self._beneficiaries]
        victims, spared, held = self._select_victims(need, number, preemptible, on_worker.held)
        fit = capacity.fit(need.alternative, held, need.reserved)
        options = [VictimOption(number, fit, victims, need, spared)] if fit and victims else []
        if len(victims) > 1:
            options += self._single_victims(need, number, [unit for unit in running if unit.rank == victims[0].rank])
        return min(options, key=lambda option: option.price, default=None)

    def _select_victims(
        self, need: PlacementNeed, number: int, preemptible: Sequence[VictimUnit], held: list[Allocation]
    ) -> tuple[tuple[VictimUnit, ...], tuple[VictimUnit, ...], list[Allocation]]:
        """(victims, victims of earlier requests that can stay, what is held beside the request then).

        :param held: what is held once all the preemptible work is gone
        """
        capacity = self._capacity(number)
        victims: list[VictimUnit] = []
        spared: list[VictimUnit] = []
        for unit in preemptible:
            amounts = self._amounts(number, unit)
            is_victim = unit in self._beneficiaries
            if is_victim and (len(unit.workers) > 1 or not capacity.can_hold(held, amounts)):
                continue
            beside = added(held, amounts)
            if capacity.fits(need.alternative, beside, need.reserved):
                held = beside
                if is_victim:
                    spared.append(unit)
            elif not is_victim:
                victims.append(unit)
        return tuple(victims), tuple(spared), held

    def _single_victims(self, need: PlacementNeed, number: int, units: Sequence[VictimUnit]) -> Iterable[VictimOption]:
        """The units each of which alone makes the request fit."""
        capacity = self._capacity(number)
        for unit in units:
            held = freed(capacity.held, self._amounts(number, unit))
            fit = _fit(capacity, need.alternative, held, need.reserved)
            if fit:
                yield VictimOption(number, fit, (unit,), need)

    def _carry_out(self, pending: PendingRequest, option: VictimOption) -> Reason:
        for spared in option.spared:
            del self._beneficiaries[spared]
            self._changing(option.number).take(self._amounts(option.number, spared))
        self._unfit.clear()
        for victim in option.victims:
            self._beneficiaries[victim] = pending
            for number in victim.workers:
                self._changing(number).free(self._amounts(number, victim))
                self._ending.setdefault(number, []).append(victim.leases[0].request_id)
        self._changing(option.number).promise(option.fit)
        return self._freed_reason(pending, option.number)

    def _wait_for(self, pending: PendingRequest, option: VictimOption) -> Reason:
        self._changing(option.number).claim(option.fit)
        self._decide_again_at(option.possible_at)
        holders = _listed([victim.leases[0].request_id for victim in option.victims])
        worker_id = self._index.entries[option.number].worker.id
        found = f"devices of worker {worker_id}, in use by {holders} at least until {option.possible_at:%H:%M:%S} UTC"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), found)

    def _decide_again_at(self, at: datetime) -> None:
        self.until = at if self.until is None else min(at, self.until)

    def _capacity(self, number: int) -> FutureCapacity:
        capacity = self._capacities.get(number)
        if capacity is None:
            capacity = self._capacities[number] = FutureCapacity(self._index, number)
        capacity.catch_up()
        return capacity

    def _changing(self, number: int) -> FutureCapacity:
        """A worker's capacity that is about to change."""
        self._changes.append(number)
        capacity = self._capacity(number)
        if self._trial is not None and number not in self._trial.checkpoints:
            self._trial.checkpoints[number] = capacity.checkpoint()
        return capacity

    def _amounts(self, number: int, unit: VictimUnit) -> ClaimedAmounts:
        """What a unit holds of a worker."""
        amounts = self._known_amounts.get((number, unit.id))
        if amounts is None:
            worker_id = self._index.entries[number].worker.id
            claims = [claim for lease in unit.leases if lease.worker_id == worker_id for claim in lease.claims]
            amounts = self._known_amounts[number, unit.id] = self._capacity(number).claimed_amounts(claims)
        return amounts

    def _freed_reason(self, pending: PendingRequest, number: int) -> Reason:
        worker_id = self._index.entries[number].worker.id
        found = f"devices of worker {worker_id}, which are being freed by {_listed(self._ending[number])}"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), found)


def _fit(
    capacity: FutureCapacity, alternative: Alternative, held: list[Allocation], reserved: ReservedCapacity | None
) -> Fit | None:
    # the first check costs less than the search for the best fit
    return capacity.fit(alternative, held, reserved) if capacity.fits(alternative, held, reserved) else None


def _with_only(pending: PendingRequest, alternative: Alternative | None) -> PendingRequest:
    """The request with one of its alternatives; None: as it is."""
    if alternative is None or len(pending.request.alternatives) == 1:
        return pending
    return replace(pending, request=pending.request.model_copy(update={"alternatives": (alternative,)}))


def _listed(request_ids: Sequence[str]) -> str:
    more = len(request_ids) - _MAX_NAMED
    return ", ".join(request_ids[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
