"""Which running work may be taken back for a waiting request, and what that costs.

A policy states its `PreemptionRules`; `preemption_plan` finds the cheapest leases that make a request fit. The rules:

- Only work of strictly greater rank is taken back. So equal requests never preempt each other, and two requests don't
  preempt each other in turn unless their ranks change, as ranks by attained service do.
- A request keeps its devices for a minimum run time, after a restart for longer by the time of the restart. So a
  request that was preempted lately, or for which others were preempted lately, is protected.
- The greatest rank is taken back first, because a victim of smaller rank would next preempt the greater one. Among
  equal ranks the fewest lost device-seconds decide.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.shapes import WorkerEntry
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Preempt, Reason
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.request_progress import (
    RequestProgress,
    remaining_s,
    running_progress,
    waiting_progress,
)
from hetero_airflow.units import MILLI_PER_DEVICE, format_duration

Rank = tuple[float, ...]
"""The smaller rank goes first and takes back the greater. All ranks of one policy have one length."""

RankOf = Callable[[RequestProgress, Estimates], Rank | None]
"""The rank of a request; None: it is not preempted, and nothing is preempted for it."""

_PREEMPTIBLE_STATES = frozenset({LeaseState.GRANTED, LeaseState.ACTIVE})


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """Which work is taken back for which, and when. Ranks must not fall along the queue of the policy."""

    rank: RankOf
    min_run_s: float | None = None
    """For how long a request keeps the devices that it got; None: as the snapshot says."""
    is_priority_class: bool = False
    """The ranks are priority classes: even tasks that are not known to save are taken back for a higher class."""


@dataclass(frozen=True, slots=True, eq=False)
class VictimUnit:
    """What can only be taken back together: the lease of one request, or the leases of one gang."""

    id: str
    leases: tuple[Lease, ...]
    workers: tuple[int, ...]
    """The numbers of its workers in the index, each once."""
    rank: Rank
    """The smallest rank of its members."""
    devices: float
    """How many it holds over all leases; a share counts as its fraction."""
    lost_device_s: float
    """What is lost if it is taken back now: devices times the work since the last checkpoint and the restart."""
    protected_until: datetime

    @property
    def victim_order(self) -> tuple[Rank, float, int, str]:
        """The order of victims, the least dispensable first: smallest rank, greatest loss, oldest lease."""
        return self._victim_order(self.lost_device_s)

    def victim_order_for(self, devices: float) -> tuple[Rank, float, int, str]:
        """The same with the loss for each device that is put to use, if so many are needed."""
        return self._victim_order(self.lost_device_s / min(self.devices, devices))

    def _victim_order(self, loss: float) -> tuple[Rank, float, int, str]:
        return self.rank, -loss, max(lease.token for lease in self.leases), self.id


@dataclass(frozen=True, slots=True)
class PlacementNeed:
    """What a waiting request needs on a worker."""

    alternative: Alternative
    requests: int
    """How many equal requests wait, including this one."""
    reserved: ReservedCapacity | None

    @property
    def devices(self) -> float:
        """How many devices one request takes."""
        return self.alternative.devices


@dataclass(frozen=True, slots=True)
class VictimOption:
    """A worker on which a request fits once the victims are gone."""

    number: int
    fit: Fit
    victims: tuple[VictimUnit, ...]
    need: PlacementNeed
    spared: tuple[VictimUnit, ...] = ()
    """Victims of earlier requests that can stay after all."""

    @property
    def price(self) -> tuple[Rank, float, int, int]:
        """Compared: how indispensable the first victim is, the loss for each request, the victims, the worker."""
        first = tuple(-part for part in min(victim.rank for victim in self.victims))
        loss = sum(victim.lost_device_s for victim in self.victims)
        devices = sum(victim.devices for victim in self.victims)
        served_requests = max(1, min(self.need.requests, int(devices / self.need.devices)))
        return first, loss / served_requests, len(self.victims), self.number

    @property
    def possible_at(self) -> datetime:
        """When no victim is protected any more."""
        return max(victim.protected_until for victim in self.victims)


@dataclass(slots=True)
class Offer:
    """A lease that a policy takes back for its own reasons: at once, or only if a request waits for its devices."""

    lease: Lease
    holder: PendingRequest
    device_class: str
    """Of its devices."""
    moves_to: str | None
    """The device class to which its holder moves; None: it waits, or goes where the list scheduler puts it."""
    is_unconditional: bool
    successor: PendingRequest | None = None
    """The running request that is to have its devices: it is taken back if that one's lease is."""
    beneficiary: PendingRequest | None = None
    """The request that waits for its devices; None if none is known to."""

    @property
    def class_rank(self) -> int:
        """Of its holder's priority class."""
        return self.holder.request.priority.rank

    def progress(self, now: datetime) -> RequestProgress:
        """Of its holder."""
        return running_progress(self.holder, self.device_class, self.lease.granted_at, now)


def accepted(offers: Iterable[Offer], estimates: Estimates, now: datetime) -> list[Preempt]:
    """Those of the offers that are taken back."""
    by_request = {offer.holder.id: offer for offer in offers}
    found: dict[str, Offer] = {}
    for offer in by_request.values():
        chain = [offer]
        while (link := chain[-1]).successor and (after := by_request.get(link.successor.id)) and after not in chain:
            chain.append(after)
        if any(link.is_unconditional or link.beneficiary is not None for link in chain):
            found[offer.holder.id] = offer
    return [_taken_back(offer, found, estimates, now) for offer in found.values()]


def _taken_back(offer: Offer, accepted_offers: Mapping[str, Offer], estimates: Estimates, now: datetime) -> Preempt:
    cause = "to wait or to go elsewhere"
    if offer.moves_to is not None:
        speed = _speed_there(offer, offer.holder, estimates)
        cause = f"to move to {offer.moves_to}" + (f", where it runs {speed}" if speed else "")
    successor = accepted_offers.get(offer.successor.id) if offer.successor else None
    if offer.beneficiary is not None:
        gaining = waiting_progress(offer.beneficiary)
    elif successor is not None:
        gaining = successor.progress(now)
    else:
        return preempt(offer.lease, None, cause)
    beneficiary = gaining.pending
    if beneficiary.request.priority is not offer.holder.request.priority:
        return preempt(offer.lease, beneficiary, f"{cause}: {priorities(beneficiary, offer.holder)}")
    cause += f": {beneficiary.id} gains more from its devices"
    if speed := _speed_there(offer, beneficiary, estimates):
        cause += f", since it would run {speed} on {offer.moves_to}"
    return preempt(offer.lease, beneficiary, f"{cause}. {_lengths(gaining, offer.progress(now), estimates)}")


def _speed_there(offer: Offer, pending: PendingRequest, estimates: Estimates) -> str:
    """How fast a request runs where the holder moves to; empty if as fast as here by estimate, or if nobody moves."""
    here, there = offer.device_class, offer.moves_to or offer.device_class
    speeds = estimates.relative_speeds(pending.task, frozenset((here, there)))
    ratio = f"{speeds[there] / speeds[here]:.2g}" if speeds[here] else "1"
    return "" if ratio == "1" else f"about {ratio} times as fast"


def _lengths(beneficiary: RequestProgress, own: RequestProgress, estimates: Estimates) -> str:
    """How long both have run, and how long they still have to where that is known of both."""
    wanted, has = (format_duration(progress.total_service_s) for progress in (beneficiary, own))
    text = f"{beneficiary.pending.id} has run for {wanted}, this task for {has}"
    wanted_s, has_s = remaining_s(beneficiary, estimates), remaining_s(own, estimates)
    if wanted_s is None or has_s is None:
        return text
    return f"{text}; on their fastest devices, they need about {format_duration(wanted_s)} and {format_duration(has_s)}"


def priorities(beneficiary: PendingRequest, holder: PendingRequest) -> str:
    """Why the first request gets devices of the second, where their priority classes differ."""
    wanted, own = beneficiary.request.priority, holder.request.priority
    return f"{beneficiary.id} has the priority {wanted}, this task has {own}"


def preempt(lease: Lease, beneficiary: PendingRequest | None, cause: str) -> Preempt:
    """The decision to take this lease back."""
    return Preempt(lease.id, lease.token, lease.request_id, beneficiary.id if beneficiary else None, cause)


def class_rank_of(progress: RequestProgress, estimates: Estimates) -> Rank:
    """The rank by priority class alone."""
    return (float(progress.pending.request.priority.rank),)


def victim_units(rules: PreemptionRules, index: WorkerIndex, snapshot: Snapshot, now: datetime) -> list[VictimUnit]:
    """What the rules allow to take back, now or later, the least dispensable first."""
    together: defaultdict[str, list[Lease]] = defaultdict(list)
    for lease in snapshot.leases:
        holder = snapshot.holders.get(lease.request_id)
        if holder is not None:
            together[f"gang {holder.gang}" if holder.gang else f"request {holder.id}"].append(lease)
    units = (
        _victim_unit(rules, index, snapshot, name, leases, now)
        for name, leases in together.items()
        if all(lease.state in _PREEMPTIBLE_STATES and lease.worker_id in index.numbers for lease in leases)
    )
    return sorted((unit for unit in units if unit is not None), key=lambda unit: unit.victim_order)


def _victim_unit(
    rules: PreemptionRules,
    index: WorkerIndex,
    snapshot: Snapshot,
    id: str,
    leases: list[Lease],
    now: datetime,
) -> VictimUnit | None:
    # the members of a gang run the same code, and in one training only the first rank saves
    if not rules.is_priority_class and all(map(snapshot.is_protected, leases)):
        return None
    sizes = [_leased_devices(index.entries[index.numbers[lease.worker_id]], lease) for lease in leases]
    if any(class_name is None for class_name, _ in sizes):
        return None
    devices = sum(amount for _, amount in sizes)
    holders = [snapshot.holders[lease.request_id] for lease in leases]
    granted_at = max(lease.granted_at for lease in leases)
    ranks = [
        rules.rank(running_progress(holder, name or "", granted_at, now), snapshot.estimates)
        for holder, (name, _) in zip(holders, sizes, strict=True)
    ]
    known_ranks = [rank for rank in ranks if rank is not None]
    if len(known_ranks) < len(ranks):
        return None
    restart_s = usual_restart_s(math.ceil(devices))
    saved_at = max(lease.saved_at or lease.granted_at for lease in leases)
    loss = devices * (max(0.0, (now - saved_at).total_seconds()) + restart_s)
    min_run_s = snapshot.min_run_s if rules.min_run_s is None else rules.min_run_s
    protected_s = min_run_s + (restart_s if min_run_s and any(holder.attained_service_s for holder in holders) else 0.0)
    workers = tuple(sorted({index.numbers[lease.worker_id] for lease in leases}))
    protected_until = granted_at + timedelta(seconds=protected_s)
    return VictimUnit(id, tuple(leases), workers, min(known_ranks), devices, loss, protected_until)


def _leased_devices(entry: WorkerEntry, lease: Lease) -> tuple[str | None, float]:
    """(class, number) of the accelerators of a lease, or of its cores if it has none."""
    claims = [
        (entry.shape.devices[entry.position[claim.device_id]], claim)
        for claim in lease.claims
        if claim.device_id in entry.position
    ]
    counted = [(device, claim) for device, claim in claims if device.kind != "cpu"] or claims
    name = device_class(counted[0][0]) if counted else None
    return name, sum(claim.share_milli for _, claim in counted) / MILLI_PER_DEVICE


class PreemptionPlan(Protocol):
    """Which leases are taken back for waiting requests during one decision."""

    @property
    def until(self) -> datetime | None:
        """When more may be preempted although nothing but the time has changed."""

    def plan_for(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """The wait reason, if leases are preempted for this request or gang. None: nothing is preempted for it.

        Called in the order of the queue. What the request is to get is withheld from all later requests.
        """

    def preemptions(self) -> Sequence[Preempt]:
        """The leases to take back."""


MakePreemptionPlan = Callable[[WorkerIndex, Snapshot, datetime], PreemptionPlan]
"""The plug-in point of `ListPolicy`: the preemption plan of one decision, empty at first."""


class NoPreemption:
    """Takes no lease back: a request that does not fit waits for work to end."""

    until: datetime | None = None

    def plan_for(self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> Reason | None:
        """None: no lease ends for it."""
        return None

    def preemptions(self) -> Sequence[Preempt]:
        """No leases."""
        return ()
