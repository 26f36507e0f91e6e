"""What every policy guarantees, against an oracle without classes and caches."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings

from hetero_airflow.matching.feasibility import version_obstacle
from hetero_airflow.model.device import Device, device_class, matches_model, model_tokens
from hetero_airflow.model.estimates import NO_ESTIMATES
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Place, Plan, ReasonCode, Refuse, Wait
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.policies.core.mix_scorer import request_mix
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options
from hetero_airflow.simulator.record import JobOutcome
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased, snapshots
from tests.effort import effort, long
from tests.policies.every_policy import make, rows

thorough = settings(max_examples=effort(3, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Examples for each row. All rows test what they share, so the suite stays within minutes."""
BY_CLASS = ["priority"]
"""Policies that take leases back by priority class alone."""
preempting = pytest.mark.parametrize(
    "name",
    [
        "priority",
        "consolidation",
        "assignment",
        "makespan",
        "max_min_fairness",
    ],
)
"""The policies that take leases back."""


# The oracle.


def memory_of(device: Device) -> int:
    return device.memory_bytes or 0


def is_suitable(alternative: Alternative, device: Device) -> bool:
    if device.kind == "cpu" or alternative.kind == "cpu":
        return device.kind == alternative.kind == "cpu" and alternative.vendor in (None, device.vendor)
    share = memory_of(device) * alternative.share_milli // 1000
    return (
        alternative.vendor in (None, device.vendor)
        and alternative.kind in (None, device.kind)
        and (alternative.model is None or matches_model(alternative.model, model_tokens(device.model)))
        and alternative.partition == device.partition
        and (alternative.memory is None or (device.memory_bytes is not None and alternative.memory.holds(share)))
        and (alternative.driver is None or version_obstacle(device.driver, alternative.driver) is None)
    )


def fits(alternative: Alternative, worker: Worker, used: Counter[tuple[str, str, str]], *, is_idle: bool) -> bool:
    """Whether the worker could run it now, or with `is_idle` if it were idle, healthy and online."""
    if any(worker.labels.get(name) != value for name, value in alternative.labels.items()):
        return False
    if any(version_obstacle(worker.runtime.get(name), spec) for name, spec in alternative.runtime.items()):
        return False
    if worker.state is WorkerState.LOST and not is_idle:
        return False

    def has(device: Device, share_milli: int, memory: int) -> bool:
        if is_idle:
            return device.capacity_milli >= share_milli and memory_of(device) >= memory
        taken = [used[worker.id, device.id, what] for what in ("milli", "memory")]
        return (
            device.leasable
            and (share_milli == 0 or device.capacity_milli - taken[0] >= share_milli)
            and (memory == 0 or memory_of(device) - taken[1] >= memory)
        )

    suitable = [device for device in worker.devices if is_suitable(alternative, device)]
    if alternative.kind == "cpu":
        return any(has(device, 1000 * alternative.count, alternative.host_memory or 0) for device in suitable)
    free = [d for d in suitable if has(d, alternative.share_milli, memory_of(d) * alternative.share_milli // 1000)]
    if len(free) < alternative.count:
        return False
    if not (alternative.cpus or alternative.host_memory):
        return True
    cpu = worker.cpu
    return cpu is not None and has(cpu, 1000 * (alternative.cpus or 0), alternative.host_memory or 0)


def usage_of(snapshot: Snapshot) -> Counter[tuple[str, str, str]]:
    used: Counter[tuple[str, str, str]] = Counter()
    for (worker_id, device_id), usage in snapshot.usage.items():
        used[worker_id, device_id, "milli"] = usage.share_milli
        used[worker_id, device_id, "memory"] = usage.memory_bytes
    return used


def take(used: Counter[tuple[str, str, str]], place: Place) -> None:
    for claim in place.claims:
        used[place.worker_id, claim.device_id, "milli"] += claim.share_milli
        used[place.worker_id, claim.device_id, "memory"] += claim.memory_bytes


# The contract.


@rows
@settings(thorough, max_examples=effort(6, 40))
@given(snapshot=snapshots(), before=snapshots())
def test_a_plan_keeps_the_contract(name: str, snapshot: Snapshot, before: Snapshot) -> None:
    plan = make(name).decide(snapshot, EPOCH)
    assert plan_faults(snapshot, plan) == []
    assert plan.preemptions == (), "the engine can't preempt"
    used = make(name)
    used.decide(before, EPOCH)
    turned = replace(snapshot, workers=snapshot.workers[::-1], pending=snapshot.pending[::-1])
    assert used.decide(snapshot, EPOCH) == plan, "it depends on what was decided before"
    assert used.decide(turned, EPOCH) == plan, "it depends on the order of the snapshot"
    assert_placements_give_what_one_alternative_asks(snapshot, plan)
    assert_alternatives_are_tried_in_order_and_no_request_before_the_head_waits_needlessly(snapshot, plan)
    assert_only_impossible_requests_are_refused(snapshot, plan)


@rows
@settings(thorough, max_examples=effort(3, 20))
@given(snapshot=snapshots())
def test_a_plan_keeps_the_contract_where_memory_is_unknown(name: str, snapshot: Snapshot) -> None:
    workers = [
        worker.model_copy(update={"devices": tuple(unmeasured(device) for device in worker.devices)})
        for worker in snapshot.workers
    ]
    snapshot = replace(snapshot, workers=tuple(workers))
    plan = make(name).decide(snapshot, EPOCH)
    assert plan_faults(snapshot, plan) == []
    assert_placements_give_what_one_alternative_asks(snapshot, plan)
    assert_alternatives_are_tried_in_order_and_no_request_before_the_head_waits_needlessly(snapshot, plan)
    assert_only_impossible_requests_are_refused(snapshot, plan)


def unmeasured(device: Device) -> Device:
    """The device; every second accelerator has unknown memory."""
    return device if device.kind == "cpu" or device.index % 2 else device.model_copy(update={"memory_bytes": None})


def assert_placements_give_what_one_alternative_asks(snapshot: Snapshot, plan: Plan) -> None:
    pending = {request.id: request for request in snapshot.pending}
    workers = {worker.id: worker for worker in snapshot.workers}
    used = usage_of(snapshot)
    for place in plan.places:
        alternative = pending[place.request_id].request.alternatives[place.alternative]
        worker = workers[place.worker_id]
        assert fits(alternative, worker, used, is_idle=False)
        devices = {device.id: device for device in worker.devices}
        device_claims = [claim for claim in place.claims if is_suitable(alternative, devices[claim.device_id])]
        beside = [claim for claim in place.claims if claim not in device_claims]
        if alternative.kind == "cpu":
            assert [(c.share_milli, c.memory_bytes) for c in device_claims] == [
                (1000 * alternative.count, alternative.host_memory or 0)
            ]
            assert beside == []
        else:
            whole = [memory_of(devices[claim.device_id]) for claim in device_claims]
            assert [claim.share_milli for claim in device_claims] == [alternative.share_milli] * alternative.count
            assert [claim.memory_bytes for claim in device_claims] == [
                size * alternative.share_milli // 1000 for size in whole
            ]
            amounts = (1000 * (alternative.cpus or 0), alternative.host_memory or 0)
            assert [(claim.share_milli, claim.memory_bytes) for claim in beside] == ([amounts] if any(amounts) else [])
        take(used, place)


def assert_alternatives_are_tried_in_order_and_no_request_before_the_head_waits_needlessly(
    snapshot: Snapshot, plan: Plan
) -> None:
    pending = {request.id: request for request in snapshot.pending}
    used = usage_of(snapshot)
    for decision in plan.decisions:
        request = pending[decision.request_id].request
        could = [any(fits(a, w, used, is_idle=False) for w in snapshot.workers) for a in request.alternatives]
        if isinstance(decision, Place):
            assert not (request.is_ordered and any(could[: decision.alternative]))
            take(used, decision)
        elif not isinstance(decision, Wait) or decision.reason.code is ReasonCode.BUSY:
            assert not any(could)
            break


def assert_only_impossible_requests_are_refused(snapshot: Snapshot, plan: Plan) -> None:
    """What no known worker could ever run is refused, and nothing else."""
    refused = {decision.request_id for decision in plan.decisions if isinstance(decision, Refuse)}
    impossible = {
        request.id
        for request in snapshot.pending
        if snapshot.workers
        and not any(
            fits(alternative, worker, Counter(), is_idle=True)
            for alternative in request.request.alternatives
            for worker in snapshot.workers
        )
    }
    assert refused == impossible


@rows
def test_without_workers_everything_waits_for_one(name: str) -> None:
    snapshot = Snapshot(1, pending=(a_pending("r1", "gpu"), a_pending("r2", "acme/x1:9", at_s=1)))
    decisions = make(name).decide(snapshot, EPOCH).decisions
    assert [(d.request_id, d.position, d.reason.code) for d in decisions if isinstance(d, Wait)] == [
        ("r1", 1, ReasonCode.NO_WORKER),
        ("r2", 2, ReasonCode.NO_WORKER),
    ]


# Preemption.


def carried_out(snapshot: Snapshot, plan: Plan, now: datetime) -> Snapshot:
    """The snapshot after the placed requests got their leases, and all preempted ones have ended."""
    freed_leases = {preempt.lease_id for preempt in plan.preemptions}
    usage, kept_leases, pending = dict(snapshot.usage), [], {request.id: request for request in snapshot.pending}
    holders = dict(snapshot.holders)
    for lease in snapshot.leases:
        if lease.id not in freed_leases and lease.state is not LeaseState.PREEMPTED:
            kept_leases.append(lease)
            continue
        holder = holders.pop(lease.request_id)
        name = next(device_class(d) for w in snapshot.workers for d in w.devices if d.id == lease.claims[0].device_id)
        stay_s = (now - lease.granted_at).total_seconds()
        pending[holder.id] = replace(
            holder,
            attained_service_s={**holder.attained_service_s, name: holder.attained_service_s.get(name, 0) + stay_s},
        )
        for claim in lease.claims:
            before = usage[lease.worker_id, claim.device_id]
            usage[lease.worker_id, claim.device_id] = replace(
                before,
                share_milli=before.share_milli - claim.share_milli,
                memory_bytes=before.memory_bytes - claim.memory_bytes,
            )
    started = []
    for place in plan.places:
        lease = a_lease(place.request_id, place.worker_id)
        started.append(
            (lease.model_copy(update={"claims": place.claims, "granted_at": now}), pending.pop(place.request_id))
        )
    after = replace(snapshot, usage=usage, leases=tuple(kept_leases), holders=holders, pending=tuple(pending.values()))
    return replace(leased(after, *started), sequence=snapshot.sequence + 1)


def untouched(snapshot: Snapshot) -> Snapshot:
    """The snapshot without leases that are being taken back."""
    leases = [
        lease.model_copy(update={"state": LeaseState.ACTIVE}) if lease.state is LeaseState.PREEMPTED else lease
        for lease in snapshot.leases
    ]
    return replace(snapshot, leases=tuple(leases))


@rows
@thorough
@given(snapshot=snapshots(can_preempt=True))
def test_preemptions_keep_the_contract(name: str, snapshot: Snapshot) -> None:
    """Only live leases, each once, gangs whole, and only for requests that wait or move."""
    plan = make(name).decide(snapshot, EPOCH)
    assert plan_faults(snapshot, plan) == []
    waits = {decision.request_id for decision in plan.decisions if isinstance(decision, Wait)}
    taken = {preempt.request_id for preempt in plan.preemptions}  # two that change places make room for each other
    assert {preempt.beneficiary for preempt in plan.preemptions} <= {*waits, *taken, None}
    assert all(preempt.beneficiary != preempt.request_id for preempt in plan.preemptions)
    gangs = {snapshot.holders[name].gang for name in taken} - {""}
    assert {holder.id for holder in snapshot.holders.values() if holder.gang in gangs} <= taken
    if name in BY_CLASS:
        pending = {request.id: request.request.priority.rank for request in snapshot.pending}
        for preempt in plan.preemptions:
            assert preempt.beneficiary is not None
            assert pending[preempt.beneficiary] < snapshot.holders[preempt.request_id].request.priority.rank


@preempting
@settings(thorough, derandomize=True)
@given(snapshot=snapshots(can_preempt=True))
def test_a_request_is_placed_once_its_victims_are_gone_and_nothing_more_is_preempted(
    name: str, snapshot: Snapshot
) -> None:
    """Where nothing was being taken back before.

    For whom a lease is taken back, a snapshot does not tell, so that who comes first may like best what is freed for
    another, who then waits on. The examples are the same at each run, since this does not hold for all: seldom, work is
    taken back for one that then has to wait behind what the head of the queue reserves (docs/scheduling.md).
    """
    policy, snapshot = make(name), untouched(snapshot)
    first = policy.decide(snapshot, EPOCH)
    after = carried_out(snapshot, first, EPOCH)
    second = policy.decide(after, EPOCH)
    beneficiaries = {preempt.beneficiary for preempt in first.preemptions}
    beneficiaries_first = [decision.request_id for decision in first.decisions if decision.request_id in beneficiaries][
        :1
    ]
    assert set(beneficiaries_first) <= {place.request_id for place in second.places}
    assert second.preemptions == (), "the outcome of a decision is taken back"


@preempting
@thorough
@given(snapshot=snapshots(can_preempt=True))
def test_preemptions_settle_while_nothing_else_happens(name: str, snapshot: Snapshot) -> None:
    policy = make(name)
    for _ in range(len(snapshot.pending) + len(snapshot.leases) + 2):
        plan = policy.decide(snapshot, EPOCH)
        if not plan.preemptions and not plan.places:
            return
        snapshot = carried_out(snapshot, plan, EPOCH)
    pytest.fail("it takes back again and again")


@long
@rows
@pytest.mark.parametrize("seed", range(effort(1, 3)))
@pytest.mark.parametrize("knowledge", [Knowledge.ORACLE, Knowledge.NONE])
def test_no_request_starves_under_a_bounded_load(name: str, knowledge: Knowledge, seed: int) -> None:
    """A stream of small jobs that fills half of two workers; sometimes a job that needs all of a worker."""
    rng = random.Random(seed)
    jobs, now = [], 0.0
    for number in range(effort(100, 300)):
        now += rng.expovariate(1 / 400)
        gpus = 4 if number % 30 == 10 else 1
        work = rng.expovariate(1 / 1600) + 60
        jobs.append(Job(f"j{number:03}", now, DeviceRequest.parse(f"gpu:{gpus}"), work, task=f"t{gpus}"))
    options = Options(knowledge=knowledge)
    record = Simulation(Workload("stream", tuple(jobs)), parse_cluster("v100=2x4"), make(name), name, options).run()
    assert [job.outcome for job in record.jobs] == [JobOutcome.FINISHED] * len(jobs)
    waits = [job.started_s - job.submitted_s for job in record.jobs if job.started_s is not None]
    assert max(waits) < 10 * 1600


# Backfill.


def head_of(plan: Plan) -> int | None:
    """The place in the plan of the first request that waits for running work."""
    for index, decision in enumerate(plan.decisions):
        if isinstance(decision, Wait):
            return index if decision.reason.code is ReasonCode.BUSY else None
    return None


@rows
@settings(thorough, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(snapshot=snapshots(max_workers=3, max_pending=10))
def test_on_one_worker_the_head_can_start_once_all_that_ran_before_it_has_ended(name: str, snapshot: Snapshot) -> None:
    """What is placed behind it leaves it that worker, where nothing is known of any run."""
    snapshot = replace(snapshot, estimates=replace(NO_ESTIMATES, mix=request_mix(snapshot)))
    plan = make(name).decide(snapshot, EPOCH)
    head = head_of(plan)
    if head is None:
        return
    wanted = next(p.request for p in snapshot.pending if p.id == plan.decisions[head].request_id)
    used = usage_of(snapshot)
    for lease in snapshot.leases:
        for claim in lease.claims:
            used[lease.worker_id, claim.device_id, "milli"] -= claim.share_milli
            used[lease.worker_id, claim.device_id, "memory"] -= claim.memory_bytes

    def can_start() -> bool:
        pairs = itertools.product(wanted.alternatives, snapshot.workers)
        return any(fits(alternative, worker, used, is_idle=False) for alternative, worker in pairs)

    could_start = can_start()
    for decision in plan.decisions[head + 1 :]:
        if isinstance(decision, Place):
            take(used, decision)
    assert can_start() or not could_start


@rows
def test_devices_that_the_head_can_never_use_are_backfilled(name: str) -> None:
    worker = a_worker("a", (a_cpu(), a_device("GPU-0"), a_device("MI-0", "mi300x", "192GiB", vendor="amd", index=1)))
    usage = {("a", "GPU-0"): DeviceUsage(1000, 40 * 2**30)}
    wanted = (PendingRequest("head", a_pending(device="nvidia").request, EPOCH, dag_id="x"),)
    later = tuple(
        PendingRequest(f"r{number}", a_pending(device=text).request, EPOCH + timedelta(seconds=1 + number), dag_id="y")
        for number, text in enumerate(["amd", "cpu:2", "gpu:0.5"])
    )
    plan = make(name).decide(Snapshot(1, (worker,), usage, wanted + later), EPOCH)
    assert [(type(d).__name__, d.request_id) for d in plan.decisions] == [
        ("Wait", "head"),
        ("Place", "r0"),
        ("Place", "r1"),
        ("Wait", "r2"),
    ]


@rows
def test_devices_for_which_the_head_waits_are_not_backfilled(name: str) -> None:
    pending = (a_pending("head", "gpu:2", dag_id="x"), a_pending("later", "gpu", at_s=1, dag_id="y"))
    usage = {("worker-a", "GPU-0"): DeviceUsage(1000, 40 * 2**30)}
    plan = make(name).decide(Snapshot(1, (a_worker(),), usage, pending), EPOCH)
    assert [(d.request_id, d.reason.code) for d in plan.decisions if isinstance(d, Wait)] == [
        ("head", ReasonCode.BUSY),
        ("later", ReasonCode.RESERVED),
    ]
