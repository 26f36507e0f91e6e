"""Which running work may be taken back for a request that waits, and what that costs.

The third plug-in point of `ListPolicy`, beside order and placement: a `PreemptionRules` says who gives way to whom;
`room.py` finds the cheapest leases that make room. What is kept in mind:

- Only who is of strictly greater rank gives way, so equals never preempt each other, and two requests don't
  preempt each other in turn unless their ranks change, as those of attained service do.
- Whoever got its devices keeps them for a minimum run time, after a restart for as much longer as that takes. So
  who was preempted lately, or preempted others lately, is protected: both have got their leases just now.
- The greatest rank goes first, since a victim of smaller rank would take it out on the greater one next. Among
  equals the least device-seconds lost decide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.restart import usual_restart_s
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.request_progress import RequestProgress, running_progress
from hetero_airflow.units import MILLI_PER_DEVICE

Rank = tuple[float, ...]
"""What orders who gives way: the smaller goes first. All ranks of one policy are of one length."""

RankOf = Callable[[RequestProgress, Estimates], Rank | None]
"""The rank of a request; None: it neither gives way nor is anything taken back for it."""

_TAKEABLE = frozenset({LeaseState.GRANTED, LeaseState.ACTIVE})


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """Who gives way to whom, and when. Along the queue of the policy, ranks must not fall."""

    rank: RankOf
    min_run_s: float | None = None
    """For so long whoever got its devices keeps them; None: as the snapshot says."""
    is_priority_class: bool = False
    """The ranks are classes of priority: tasks that are not known to save give way to a higher one, too."""
    is_queue_order: bool = False
    """The ranks are the order of the queue itself, so that who is passed over can have it all back in its turn."""
    period_s: float | None = None
    """After so long, ranks may order otherwise though nothing but the time has changed; None for never."""


@dataclass(frozen=True, slots=True, eq=False)
class VictimUnit:
    """What can only be taken back together: the lease of one request, or the leases of one gang."""

    id: str
    leases: tuple[Lease, ...]
    workers: tuple[int, ...]
    """Where, by number in the fleet; each once."""
    rank: Rank
    """The smallest of its members."""
    devices: float
    """That it holds, over all leases; a share counts as its fraction."""
    lost_device_s: float
    """What is lost if it is taken back now: work since the last checkpoint, and the restart, times devices."""
    protected_until: datetime

    @property
    def dispensable(self) -> tuple[Rank, float, int, str]:
        """What orders victims: the greatest rank goes first, then the least loss, then the youngest lease."""
        return self._dispensable(self.lost_device_s)

    def dispensable_for(self, devices: float) -> tuple[Rank, float, int, str]:
        """The same, with the loss for each of its devices of which so many would be made use of."""
        return self._dispensable(self.lost_device_s / min(self.devices, devices))

    def _dispensable(self, loss: float) -> tuple[Rank, float, int, str]:
        return self.rank, -loss, max(lease.token for lease in self.leases), self.id


def victim_units(
    preemption: PreemptionRules, fleet: WorkerIndex, snapshot: Snapshot, now: datetime
) -> list[VictimUnit]:
    """What could be taken back at all, now or later, the least dispensable first."""
    numbers = {seat.worker.id: number for number, seat in enumerate(fleet.entries)}
    together: defaultdict[str, list[Lease]] = defaultdict(list)
    for lease in snapshot.leases:
        holder = snapshot.holders.get(lease.request_id)
        if holder is not None:
            together[f"gang {holder.gang}" if holder.gang else f"request {holder.id}"].append(lease)
    found: list[VictimUnit] = []
    for name, leases in together.items():
        if all(lease.state in _TAKEABLE and lease.worker_id in numbers for lease in leases):
            holding = _victim_unit(preemption, fleet, snapshot, numbers, name, leases, now)
            if holding is not None:
                found.append(holding)
    found.sort(key=lambda holding: holding.dispensable)
    return found


def _victim_unit(
    preemption: PreemptionRules,
    fleet: WorkerIndex,
    snapshot: Snapshot,
    numbers: Mapping[str, int],
    id: str,
    leases: list[Lease],
    now: datetime,
) -> VictimUnit | None:
    # the members of a gang run the same code, and of one training only the first rank saves
    if not preemption.is_priority_class and all(map(snapshot.is_protected, leases)):
        return None
    sizes = [_devices(fleet, numbers[lease.worker_id], lease) for lease in leases]
    if any(class_name is None for class_name, _ in sizes):
        return None
    devices = sum(amount for _, amount in sizes)
    holders = [snapshot.holders[lease.request_id] for lease in leases]
    granted_at = max(lease.granted_at for lease in leases)
    ranks = [
        preemption.rank(running_progress(holder, name or "", granted_at, now), snapshot.estimates)
        for holder, (name, _) in zip(holders, sizes, strict=True)
    ]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return None
    restart_s = usual_restart_s(math.ceil(devices))
    saved_at = max(lease.saved_at or lease.granted_at for lease in leases)
    loss = devices * (max(0.0, (now - saved_at).total_seconds()) + restart_s)
    min_run_s = snapshot.min_run_s if preemption.min_run_s is None else preemption.min_run_s
    protected_s = min_run_s + (restart_s if min_run_s and any(holder.attained_service_s for holder in holders) else 0.0)
    workers = tuple(sorted({numbers[lease.worker_id] for lease in leases}))
    protected_until = granted_at + timedelta(seconds=protected_s)
    return VictimUnit(id, tuple(leases), workers, min(known), devices, loss, protected_until)


def _devices(fleet: WorkerIndex, number: int, lease: Lease) -> tuple[str | None, float]:
    """Class of the devices of a lease, and how many: its accelerators, or the cores where it has none."""
    seat = fleet.entries[number]
    devices = [
        (seat.shape.devices[seat.position[c.device_id]], c) for c in lease.claims if c.device_id in seat.position
    ]
    claimed = [(device, claim) for device, claim in devices if device.kind != "cpu"] or devices
    name = device_class(claimed[0][0]) if claimed else None
    return name, sum(claim.share_milli for _, claim in claimed) / MILLI_PER_DEVICE
