"""Does a plan fit its snapshot? Asked of every plan before it is committed, and by the contract suite of policies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Place, Plan, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.gangs import gang_faults
from hetero_airflow.scheduling.topology_check import topology_faults


def plan_faults(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with a plan, a line each; empty if it can be committed.

    Each pending request has one decision; each placement names an alternative of its request and an
    online worker; no device is leased beyond what is free, or while it is not leasable; a gang is placed
    whole; devices and gangs are as near together as is insisted on; what is preempted is a live lease, once.
    """
    pending = {one.id: one for one in snapshot.pending}
    faults = list(_decision_faults(pending, plan))
    places = plan.places
    wanted = {place.worker_id for place in places}
    devices = {
        worker.id: {device.id: device for device in worker.devices}
        for worker in (snapshot.workers if wanted else ())
        if worker.id in wanted and worker.state is not WorkerState.LOST
    }
    taken: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for place in places:
        one, own = pending.get(place.request_id), devices.get(place.worker_id)
        if one is None:
            continue
        if own is None:
            faults.append(f"{place.request_id} is placed on {place.worker_id}, which is not there")
            continue
        faults += _placement_faults(one, own, place)
        for claim in place.claims:
            more = taken[place.worker_id, claim.device_id]
            more["milli"] += claim.share_milli
            more["memory"] += claim.memory_bytes
    faults += _capacity_faults(snapshot, devices, taken)
    faults += gang_faults(snapshot, plan)
    faults += topology_faults(snapshot, plan)
    faults += _preemption_faults(snapshot, plan)
    return faults


def _preemption_faults(snapshot: Snapshot, plan: Plan) -> Iterable[str]:
    if not plan.preemptions:
        return
    leases = {lease.id: lease for lease in snapshot.leases}
    if not snapshot.can_preempt:
        yield f"it preempts lease {plan.preemptions[0].lease_id}, but nothing here can be preempted"
    for lease_id, times in Counter(preempt.lease_id for preempt in plan.preemptions).items():
        if times > 1:
            yield f"lease {lease_id} is preempted {times} times"
    for preempt in plan.preemptions:
        lease = leases.get(preempt.lease_id)
        if lease is None or (lease.token, lease.request_id) != (preempt.token, preempt.request_id):
            yield f"it preempts lease {preempt.lease_id} of {preempt.request_id}, which is not there"
        elif lease.state is LeaseState.PREEMPTED:
            yield f"it preempts lease {lease.id}, which is preempted already"


def _decision_faults(pending: Mapping[str, PendingRequest], plan: Plan) -> Iterable[str]:
    ids = [decision.request_id for decision in plan.decisions]
    if len(ids) != len(pending) or pending.keys() != set(ids):
        decided = Counter(ids)
        for request_id, times in decided.items():
            if request_id not in pending:
                yield f"{request_id} is decided but does not wait"
            elif times > 1:
                yield f"{request_id} is decided {times} times"
        yield from (f"{request_id} is not decided" for request_id in pending if request_id not in decided)
    positions = [decision.position for decision in plan.decisions if isinstance(decision, Wait)]
    if positions != list(range(1, len(positions) + 1)):
        yield f"positions do not count from 1: {positions[:10]}"


def _placement_faults(one: PendingRequest, devices: Mapping[str, Device], place: Place) -> Iterable[str]:
    if not 0 <= place.alternative < len(one.request.alternatives):
        yield f"{place.request_id} is placed by alternative {place.alternative}, which it does not have"
    if not place.claims:
        yield f"{place.request_id} is placed without a device"
    claimed: set[str] = set()
    for claim in place.claims:
        device = devices.get(claim.device_id)
        if device is None:
            yield f"{place.request_id} claims {claim.device_id}, which {place.worker_id} does not have"
        elif not device.leasable:
            yield f"{place.request_id} claims {claim.device_id}, which is not leasable"
        if claim.device_id in claimed:
            yield f"{place.request_id} claims {claim.device_id} more than once"
        claimed.add(claim.device_id)
        if claim.share_milli < 0 or claim.memory_bytes < 0 or not (claim.share_milli or claim.memory_bytes):
            amount = f"{claim.share_milli} milli and {claim.memory_bytes} bytes"
            yield f"{place.request_id} claims {amount} of {claim.device_id}"


def _capacity_faults(
    snapshot: Snapshot,
    devices: Mapping[str, Mapping[str, Device]],
    taken: Mapping[tuple[str, str], Mapping[str, int]],
) -> Iterable[str]:
    for (worker_id, device_id), more in taken.items():
        device = devices[worker_id].get(device_id)
        if device is None:
            continue
        used = snapshot.used(worker_id, device_id)
        for name, capacity, before in (
            ("milli", device.capacity_milli, used.share_milli),
            ("memory", device.memory_bytes, used.memory_bytes),
        ):
            if more[name] and before + more[name] > capacity:
                yield f"{worker_id} {device_id}: {before} + {more[name]} {name} of {capacity} are leased"
