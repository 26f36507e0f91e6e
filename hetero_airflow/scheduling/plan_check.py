"""Does a plan fit its snapshot? Asked of every plan before it is committed, and by the contract suite of policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Place, Plan, Wait
from hetero_airflow.model.snapshot import Pending, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.scheduling.gangs import gang_faults


def plan_faults(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with a plan, a line each; empty if it can be committed.

    Each pending request has one decision; each placement names an alternative of its request and an
    online worker; no device is leased beyond what is free, or while it is not leasable; a gang is placed
    whole; what is preempted is a live lease, once.
    """
    pending = {one.id: one for one in snapshot.pending}
    faults = list(_decision_faults(pending, plan))
    wanted = {place.worker_id for place in plan.places}
    workers = {worker.id: worker for worker in snapshot.workers if worker.id in wanted}
    taken: Counter[tuple[str, str, str]] = Counter()
    for place in plan.places:
        one, worker = pending.get(place.request_id), workers.get(place.worker_id)
        if one is None:
            continue
        if worker is None or worker.state is WorkerState.LOST:
            faults.append(f"{place.request_id} is placed on {place.worker_id}, which is not there")
            continue
        faults += _place_faults(one, worker, place)
        for claim in place.claims:
            taken[place.worker_id, claim.device_id, "milli"] += claim.milli
            taken[place.worker_id, claim.device_id, "memory"] += claim.memory_bytes
    faults += _capacity_faults(snapshot, workers, taken)
    faults += gang_faults(snapshot, plan)
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


def _decision_faults(pending: dict[str, Pending], plan: Plan) -> Iterable[str]:
    decided = Counter(decision.request_id for decision in plan.decisions)
    for request_id, times in decided.items():
        if request_id not in pending:
            yield f"{request_id} is decided but does not wait"
        elif times > 1:
            yield f"{request_id} is decided {times} times"
    yield from (f"{request_id} is not decided" for request_id in pending if request_id not in decided)
    positions = [decision.position for decision in plan.decisions if isinstance(decision, Wait)]
    if positions != list(range(1, len(positions) + 1)):
        yield f"positions do not count from 1: {positions[:10]}"


def _place_faults(one: Pending, worker: Worker, place: Place) -> Iterable[str]:
    if not 0 <= place.alternative < len(one.request.alternatives):
        yield f"{place.request_id} is placed by alternative {place.alternative}, which it does not have"
    if not place.claims:
        yield f"{place.request_id} is placed without a device"
    devices = {device.id: device for device in worker.devices}
    claimed = Counter(claim.device_id for claim in place.claims)
    for device_id, times in claimed.items():
        if device_id not in devices:
            yield f"{place.request_id} claims {device_id}, which {worker.id} does not have"
        elif not devices[device_id].leasable:
            yield f"{place.request_id} claims {device_id}, which is not leasable"
        if times > 1:
            yield f"{place.request_id} claims {device_id} {times} times"
    for claim in place.claims:
        if claim.milli < 0 or claim.memory_bytes < 0 or not (claim.milli or claim.memory_bytes):
            yield f"{place.request_id} claims {claim.milli} milli and {claim.memory_bytes} bytes of {claim.device_id}"


def _capacity_faults(
    snapshot: Snapshot, workers: dict[str, Worker], taken: Counter[tuple[str, str, str]]
) -> Iterable[str]:
    for worker_id, device_id in {(worker_id, device_id) for worker_id, device_id, _ in taken}:
        device = next((device for device in workers[worker_id].devices if device.id == device_id), None)
        if device is None:
            continue
        used = snapshot.used(worker_id, device_id)
        for name, capacity, before in (
            ("milli", device.capacity_milli, used.milli),
            ("memory", device.memory_bytes, used.memory_bytes),
        ):
            more = taken[worker_id, device_id, name]
            if more and before + more > capacity:
                yield f"{worker_id} {device_id}: {before} + {more} {name} of {capacity} are leased"
