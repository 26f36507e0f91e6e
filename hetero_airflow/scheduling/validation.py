"""Checks that a plan fits its snapshot: before every commit, and in the contract suite of policies."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import combinations

from hetero_airflow.matching.bandwidth import common_level, device_level, worker_location
from hetero_airflow.matching.gangs.placement import gang_level
from hetero_airflow.matching.linked_devices import needed_level
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Place, Plan, Wait
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.policies import load_policy
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.paused_requests import decide_without_paused

log = logging.getLogger(__name__)


class ValidatedPolicy:
    """A policy whose plans can be committed: where it fails, the policy `priority` decides instead."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fallback = load_policy("priority")
        self._logged = ""
        """The failure that was logged last: the same one is not logged twice in a row."""

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A plan that fits the snapshot. The policy does not see paused requests."""
        return decide_without_paused(self._decide, snapshot, now)

    def _decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        try:
            plan = self._policy.decide(snapshot, now)
            faults = plan_faults(snapshot, plan)
            failure = f"its plan does not fit: {'; '.join(faults[:3])}" if faults else ""
        except Exception as error:  # noqa: BLE001  a policy from another package may raise anything
            failure = f"it raised {type(error).__name__}: {error}"
        if failure and failure != self._logged:
            name = getattr(self._policy, "name", type(self._policy).__name__)
            log.warning("Policy %s is skipped, %s. The policy priority decides instead.", name, failure)
        self._logged = failure
        return self._fallback.decide(snapshot, now) if failure else plan


def plan_faults(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with a plan, one line each; empty if the plan can be committed.

    Each pending request has one decision. Each placement names an alternative of its request and an online worker. No
    device is leased beyond what is free, or while it is not leasable. A gang is placed as a whole. Devices and gangs
    are as close together as their requests require. Each preempted lease exists and is preempted once.
    """
    pending = {request.id: request for request in snapshot.pending}
    worker_ids = {place.worker_id for place in plan.places}
    workers = {
        worker.id: {device.id: device for device in worker.devices}
        for worker in (snapshot.workers if worker_ids else ())
        if worker.id in worker_ids and worker.state is not WorkerState.LOST
    }
    return [
        *_decision_faults(pending, plan),
        *_placement_faults(pending, workers, plan),
        *_capacity_faults(snapshot, workers, _claimed(pending, workers, plan)),
        *_gang_faults(snapshot, plan),
        *_topology_faults(snapshot, plan),
        *_preemption_faults(snapshot, plan),
    ]


def _decision_faults(pending: Mapping[str, PendingRequest], plan: Plan) -> Iterator[str]:
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


def _placement_faults(
    pending: Mapping[str, PendingRequest], workers: Mapping[str, Mapping[str, Device]], plan: Plan
) -> Iterator[str]:
    for place in plan.places:
        if place.request_id not in pending:
            continue
        if place.worker_id not in workers:
            yield f"{place.request_id} is placed on {place.worker_id}, which is not there"
            continue
        if not 0 <= place.alternative < len(pending[place.request_id].request.alternatives):
            yield f"{place.request_id} is placed by alternative {place.alternative}, which it does not have"
        if not place.claims:
            yield f"{place.request_id} is placed without a device"
        yield from _claim_faults(place, workers[place.worker_id])


def _claim_faults(place: Place, devices: Mapping[str, Device]) -> Iterator[str]:
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


def _claimed(
    pending: Mapping[str, PendingRequest], workers: Mapping[str, Mapping[str, Device]], plan: Plan
) -> Mapping[tuple[str, str], Counter[str]]:
    """(worker id, device id) → what the plan claims of it."""
    claimed: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for place in plan.places:
        if place.request_id in pending and place.worker_id in workers:
            for claim in place.claims:
                amounts = claimed[place.worker_id, claim.device_id]
                amounts["milli"] += claim.share_milli
                amounts["memory"] += claim.memory_bytes
    return claimed


def _capacity_faults(
    snapshot: Snapshot,
    workers: Mapping[str, Mapping[str, Device]],
    claimed: Mapping[tuple[str, str], Mapping[str, int]],
) -> Iterator[str]:
    for (worker_id, device_id), amounts in claimed.items():
        device = workers[worker_id].get(device_id)
        if device is None:
            continue
        used = snapshot.used(worker_id, device_id)
        for name, capacity, before in (
            ("milli", device.capacity_milli, used.share_milli),
            ("memory", device.memory_bytes or 0, used.memory_bytes),
        ):
            if amounts[name] and before + amounts[name] > capacity:
                yield f"{worker_id} {device_id}: {before} + {amounts[name]} {name} of {capacity} are leased"


def _gang_faults(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A line for each gang of which a plan places some members, but not all that hold no lease yet."""
    gang_of = {request.id: request for request in snapshot.pending if request.gang}
    if not gang_of:
        return
    placed: defaultdict[str, list[PendingRequest]] = defaultdict(list)
    for place in plan.places:
        if place.request_id in gang_of:
            placed[gang_of[place.request_id].gang].append(gang_of[place.request_id])
    holding = Counter(holder.gang for holder in snapshot.holders.values() if holder.gang)
    for gang, members in placed.items():
        size = members[0].gang_size
        if len(members) + holding[gang] < size:
            yield f"gang {gang} of {size} is placed in part: {len(members)} now, {holding[gang]} before"


def _topology_faults(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A line for each placement whose devices, or gang, are farther apart than required. Wait budgets do not count."""
    placed = {place.request_id for place in plan.places}
    requests = {
        request.id: request
        for request in snapshot.pending
        if request.id in placed and any(alternative.topology for alternative in request.request.alternatives)
    }
    if not requests:
        return
    workers = {worker.id: worker for worker in snapshot.workers}
    gangs: defaultdict[str, list[tuple[Alternative, Worker]]] = defaultdict(list)
    for place in plan.places:
        request, worker = requests.get(place.request_id), workers.get(place.worker_id)
        if request is None or worker is None or not 0 <= place.alternative < len(request.request.alternatives):
            continue
        alternative = request.request.alternatives[place.alternative]
        yield from _link_faults(place, alternative, worker)
        if request.gang:
            gangs[request.gang].append((alternative, worker))
    for gang, members in gangs.items():
        required = gang_level(alternative for alternative, _ in members)
        actual = common_level([worker_location(worker) for _, worker in members])
        if actual is not None and actual.rank > required.rank:
            yield f"gang {gang} is placed within one {actual}, and asks for one {required}"


def _link_faults(place: Place, alternative: Alternative, worker: Worker) -> Iterator[str]:
    level = needed_level(alternative)
    if level is None:
        return
    claimed = {claim.device_id for claim in place.claims}
    devices = [device for device in worker.devices if device.id in claimed and device.kind != "cpu"]
    for first, second in combinations(devices, 2):
        if device_level(worker, first, second).rank > level.rank:
            yield f"{place.request_id} gets {first.id} and {second.id}, which are not joined by {level}"


def _preemption_faults(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
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
