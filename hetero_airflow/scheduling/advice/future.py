"""A simulated future of a snapshot, in which leases end and plans are carried out. The caller decides the plans."""

import heapq
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from hetero_airflow.matching.feasibility import feasibility_of
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.device import Device
from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Place, Plan, Refuse
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.lease_rules import granted_lease, leased_device_class

_FOREVER = timedelta(days=3650)

_ROUNDING = 1e-7
"""Ends that differ by this part of their time are one moment: so exact are the quantiles of a certain duration."""


class SimulatedFuture:
    """The cluster after a snapshot, where each run takes as long as one value of its estimate. Others never end.

    :param request_id: the pending request of the snapshot whose start is estimated
    :param part: 0 for `Interval.low`, 1 for the middle, 2 for high
    """

    def __init__(self, snapshot: Snapshot, request_id: str, now: datetime, part: int) -> None:
        self.time_s = 0.0
        """Seconds since the snapshot."""
        self.unknown: dict[TaskName, None] = {}
        """Tasks without an estimate that hold devices of workers that the request could use."""
        self._first, self._now, self._part = snapshot, now, part
        self._usage = dict(snapshot.usage)
        self._pending = {pending.id: pending for pending in snapshot.pending}
        self._leases = {lease.id: lease for lease in snapshot.leases}
        self._holders = dict(snapshot.holders)
        self._dag_tokens = dict(snapshot.dag_tokens)
        self._token = max((lease.token for lease in snapshot.leases), default=0)
        self._token = max(self._token, *self._dag_tokens.values()) if self._dag_tokens else self._token
        self._devices = {w.id: {device.id: device for device in w.devices} for w in snapshot.workers}
        self._useful = _useful_workers(snapshot, self._pending[request_id])
        self._ends: list[tuple[float, int, str]] = []
        """Time, a number that orders ties, lease id."""
        self._serial = count()
        for lease in snapshot.leases:
            self._plan_end(lease)

    def snapshot(self) -> Snapshot:
        """The snapshot of this moment."""
        return replace(
            self._first,
            usage=dict(self._usage),
            pending=tuple(self._pending.values()),
            leases=tuple(self._leases.values()),
            holders=dict(self._holders),
            dag_tokens=dict(self._dag_tokens),
        )

    @property
    def running_leases(self) -> int:
        """How many leases there are at this moment."""
        return len(self._leases)

    def advance(self, limit_s: float, ends: int = 1) -> bool:
        """Go on until this number of runs has ended, at most to the limit; False if nothing more will happen."""
        has_moved = False
        for _ in range(ends):
            if not self._ends or self._ends[0][0] > limit_s:
                break
            self.time_s, has_moved = self._ends[0][0], True
            while self._ends and self._ends[0][0] <= self.time_s * (1 + _ROUNDING) + _ROUNDING:
                self._end(heapq.heappop(self._ends)[2])
        if not has_moved and limit_s < math.inf:
            self.time_s, has_moved = limit_s, True
        return has_moved

    def carry_out(self, plan: Plan) -> None:
        """Start and end what the plan says. A preempted run ends at once and waits again."""
        for preempt in plan.preemptions:
            lease, holder = self._leases.get(preempt.lease_id), self._holders.get(preempt.request_id)
            self._end(preempt.lease_id)
            if lease is not None and holder is not None:
                name, held_s = self._device_class(lease), self._held_s(lease)
                service_s = {**holder.attained_service_s, name: holder.attained_service_s.get(name, 0.0) + held_s}
                back = replace(holder, attained_service_s=service_s, interruptions=holder.interruptions + 1)
                pending = [*self._pending.values(), back]
                pending.sort(key=lambda request: (request.submitted_at, request.id))
                self._pending = {request.id: request for request in pending}
        for decision in plan.decisions:
            if isinstance(decision, Place):
                self._begin(decision)
            elif isinstance(decision, Refuse):
                self._pending.pop(decision.request_id, None)

    def _begin(self, place: Place) -> None:
        pending = self._pending.pop(place.request_id)
        at = self._now + timedelta(seconds=self.time_s)
        for claim in place.claims:
            key = (place.worker_id, claim.device_id)
            used = self._usage.get(key, NO_USAGE)
            self._usage[key] = DeviceUsage(
                used.share_milli + claim.share_milli, used.memory_bytes + claim.memory_bytes, at
            )
        self._token += 1
        self._dag_tokens[pending.dag_id] = self._token
        lease = granted_lease(place, place.claims, self._token, at, at + _FOREVER)
        self._leases[lease.id], self._holders[pending.id] = lease, pending
        self._plan_end(lease)

    def _end(self, ended_id: str) -> None:
        lease = self._leases.pop(ended_id, None)
        if lease is None:
            return
        self._holders.pop(lease.request_id, None)
        for claim in lease.claims:
            key = (lease.worker_id, claim.device_id)
            used = self._usage.get(key, NO_USAGE)
            share_milli, memory_bytes = used.share_milli - claim.share_milli, used.memory_bytes - claim.memory_bytes
            self._usage[key] = DeviceUsage(max(share_milli, 0), max(memory_bytes, 0), used.last_granted_at)

    def _plan_end(self, lease: Lease) -> None:
        """Note when a lease ends, or that this is not known."""
        holder = self._holders.get(lease.request_id)
        remaining_s = self._remaining_s(lease, holder)
        if remaining_s is not None:
            heapq.heappush(self._ends, (self.time_s + remaining_s, next(self._serial), lease.id))
        elif holder is not None and lease.worker_id in self._useful:
            self.unknown[holder.task] = None

    def _remaining_s(self, lease: Lease, holder: PendingRequest | None) -> float | None:
        if lease.state is LeaseState.PREEMPTED:
            return 0.0
        if holder is None or lease.state is LeaseState.EXPIRED:
            return None
        name, held_s = self._device_class(lease), self._held_s(lease)
        at, before = self._now + timedelta(seconds=self.time_s), holder.attained_service_s
        remaining = self._first.estimates.lease_remaining_s(lease.id, holder.task, name, held_s, before, at)
        return None if remaining is None else remaining[self._part]

    def _held_s(self, lease: Lease) -> float:
        return max((self._now - lease.granted_at).total_seconds() + self.time_s, 0.0)

    def _device_class(self, lease: Lease) -> str:
        devices: Mapping[str, Device] = self._devices.get(lease.worker_id, {})
        leased = leased_device_class(lease.claims, devices)
        return "" if leased is None else leased[0]


def _useful_workers(snapshot: Snapshot, pending: PendingRequest) -> frozenset[str]:
    """Ids of the online workers that could run the request if they were idle."""
    shapes, alternatives = Shapes(), pending.request.alternatives
    return frozenset(
        worker.id
        for worker in snapshot.workers
        if worker.state is WorkerState.ONLINE
        and any(feasibility_of(alternative, shapes.entry(worker).shape).is_servable for alternative in alternatives)
    )
