"""Priority classes are strict, under each policy that orders by them; and preemption within a class can be off."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_airflow.matching.scoring import PlacementScorer
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan, ReasonCode, Wait
from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.snapshot import MIN_RUN_S, PendingRequest, Snapshot
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.core.mix_scorer import request_mix
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_worker, snapshots
from tests.effort import effort
from tests.policies.class_assignment.test_weighted_assignment import FOUR, a_host, anywhere, held, known, where
from tests.policies.every_policy import make
from tests.policies.test_contract import fits, take, usage_of

thorough = settings(max_examples=effort(20, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
by_class = pytest.mark.parametrize("name", ["priority", "assignment", "consolidation", "makespan", "max_min_fairness"])
"""Runs a test for each policy that orders by class. The others say in docs/scheduling.md by what they order."""


@by_class
@thorough
@given(snapshot=snapshots(can_preempt=True), min_run_s=st.sampled_from([0.0, 30.0, MIN_RUN_S]))
def test_who_waits_first_gets_the_leases_of_lower_classes(name: str, snapshot: Snapshot, min_run_s: float) -> None:
    snapshot = replace(snapshot, min_run_s=min_run_s)
    plan = make(name).decide(snapshot, EPOCH)
    assert_what_has_just_begun_is_kept(snapshot, plan)
    assert_notices_name_the_priorities_where_they_are_the_reason(snapshot, plan)
    first = next((d for d in plan.decisions if isinstance(d, Wait) and d.reason.is_transient), None)
    if first is None or first.reason.code is ReasonCode.PREEMPTING:
        return
    request = next(pending for pending in snapshot.pending if pending.id == first.request_id)
    assert not could_run_without_lower_classes(snapshot, plan, request), first


def assert_what_has_just_begun_is_kept(snapshot: Snapshot, plan: Plan) -> None:
    taken = {preempt.lease_id for preempt in plan.preemptions}
    assert all(
        lease.granted_at + timedelta(seconds=snapshot.min_run_s) <= EPOCH
        for lease in snapshot.leases
        if lease.id in taken
    )


def assert_notices_name_the_priorities_where_they_are_the_reason(snapshot: Snapshot, plan: Plan) -> None:
    priority = {pending.id: pending.request.priority for pending in (*snapshot.pending, *snapshot.holders.values())}
    for preemption in plan.preemptions:
        wanted, own = priority.get(preemption.beneficiary or ""), priority[preemption.request_id]
        if wanted in (None, own):
            assert "has the priority" not in preemption.cause
        else:
            assert f"{preemption.beneficiary} has the priority {wanted}, this task has {own}" in preemption.cause


def could_run_without_lower_classes(snapshot: Snapshot, plan: Plan, request: PendingRequest) -> bool:
    """Whether it fits beside all placements once the leases of lower classes are gone that have had their time."""
    used = usage_of(snapshot)
    for place in plan.places:
        take(used, place)
    holders = snapshot.holders
    kept_gangs = {
        holders[lease.request_id].gang for lease in snapshot.leases if not gives_way(snapshot, lease, request)
    }
    for lease in snapshot.leases:
        gang = holders[lease.request_id].gang
        if gives_way(snapshot, lease, request) and not (gang and gang in kept_gangs):
            for claim in lease.claims:
                used[lease.worker_id, claim.device_id, "milli"] -= claim.share_milli
                used[lease.worker_id, claim.device_id, "memory"] -= claim.memory_bytes
    return any(
        fits(alternative, worker, used, is_idle=False)
        for alternative in request.request.alternatives
        for worker in snapshot.workers
    )


def gives_way(snapshot: Snapshot, lease: Lease, request: PendingRequest) -> bool:
    holder = snapshot.holders[lease.request_id]
    restart_s = usual_restart_s(8) if holder.attained_service_s else 0.0
    return (
        lease.state in (LeaseState.GRANTED, LeaseState.ACTIVE)
        and holder.request.priority.rank > request.request.priority.rank
        and lease.granted_at + timedelta(seconds=snapshot.min_run_s + restart_s) <= EPOCH
    )


class PacksAsPriority(Assignment):
    """Where shares and whole devices mix, the default packs by the mix, and may lack a device that priority finds."""

    def _scorer_for(self, snapshot: Snapshot) -> PlacementScorer:
        return self._whole_devices


@thorough
@given(snapshot=snapshots(can_preempt=True), protects=st.booleans())
def test_without_preemption_within_a_class_the_default_takes_back_what_priority_does(
    snapshot: Snapshot, protects: bool
) -> None:
    snapshot = replace(snapshot, preempts_within_class=False, protects_unsaved=protects)
    default, by_priority = (policy.decide(snapshot, EPOCH) for policy in (PacksAsPriority(), PriorityPolicy()))
    assert taken_back(default) == taken_back(by_priority)


@pytest.mark.parametrize("name", ["priority", "assignment", "makespan"])
@thorough
@given(snapshot=snapshots(can_preempt=True).filter(lambda snapshot: snapshot.workers))
def test_leases_that_nobody_above_can_use_change_nothing_for_the_classes_above(name: str, snapshot: Snapshot) -> None:
    # without a past, the default learns the mix of requests from those that are there
    snapshot = replace(snapshot, estimates=replace(snapshot.estimates, mix=request_mix(snapshot)))
    board = a_worker("far", (a_device("far-0", "alveo-u250", "64GiB", vendor="amd", kind="fpga"),))
    far = Snapshot(1, (board,), {}, (a_pending("low", "fpga", priority="low"),))
    far = held(far, make(name).decide(far, EPOCH), EPOCH - timedelta(days=1))
    both = replace(
        snapshot,
        workers=(*snapshot.workers, board),
        leases=(*snapshot.leases, *far.leases),
        usage={**snapshot.usage, **far.usage},
        holders={**snapshot.holders, **far.holders},
    )
    alone, beside = (make(name).decide(seen, EPOCH) for seen in (snapshot, both))
    assert len(far.leases) == 1
    assert where(beside) == where(alone)
    assert taken_back(beside) == taken_back(alone)


def test_a_newcomer_goes_before_an_older_request_that_has_run_long_also_where_a_low_one_runs() -> None:
    old = a_pending("old", "v100", attained_service_s={"nvidia/v100": 36_000.0})
    new = a_pending("new", "v100", 35_000)
    hosts = a_host("v100-0", v100=1), a_host("k80-0", k80=1)
    snapshot = Snapshot(1, hosts, {}, (a_pending("low", "k80", priority="low"),), can_preempt=True)
    for before in (snapshot, held(snapshot, Assignment().decide(snapshot, EPOCH))):
        crowded = replace(before, pending=(old, new))
        assert where(Assignment().decide(crowded, EPOCH + timedelta(seconds=36_000))) == {"new": "v100-0"}


def test_a_notice_names_the_priorities_also_where_the_lease_was_offered_to_its_own_class() -> None:
    estimates = known(("a", FOUR[0]), ("b", FOUR[0]), ("loses", FOUR[1]))
    snapshot = Snapshot(
        1, (a_host("v100-0", v100=2), a_host("k80-0", k80=2)), {}, (anywhere("a"), anywhere("b")),
        can_preempt=True, estimates=estimates,
    )  # fmt: skip
    snapshot = held(snapshot, Assignment().decide(snapshot, EPOCH))
    half = a_pending("half", "v100:0.5", 3600, priority="urgent")
    snapshot = replace(snapshot, pending=(anywhere("loses", 3600), half))
    plan = Assignment().decide(snapshot, EPOCH + timedelta(hours=1))
    assert [preemption.cause for preemption in plan.preemptions] == [
        "to move to nvidia/k80, where it runs about 0.9 times as fast: "
        "half has the priority urgent, this task has medium"
    ]


def taken_back(plan: Plan) -> list[tuple[str, str | None]]:
    return [(preempt.lease_id, preempt.beneficiary) for preempt in plan.preemptions]


# What was seen in a real Airflow.


@pytest.mark.parametrize("policy", [Assignment, PriorityPolicy])
@pytest.mark.parametrize("upper", ["medium", "high", "urgent"])
@pytest.mark.parametrize("mean_s", [5.0, 17.0, 300.0])
def test_a_higher_class_does_not_wait_for_a_low_task_whatever_the_mean_run(
    policy: Callable[[], Policy], upper: str, mean_s: float
) -> None:
    low = a_pending("low", "a100:2", priority="low")
    snapshot = Snapshot(
        1, (a_host("vm", **{"a100-80gb": 2}),), {}, (low,), can_preempt=True, protects_unsaved=True, min_run_s=15.0,
        estimates=Estimates(finished_s=(mean_s,) * 30),
    )  # fmt: skip
    snapshot = held(snapshot, policy().decide(snapshot, EPOCH))
    saved = tuple(lease.model_copy(update={"saved_at": EPOCH + timedelta(seconds=55)}) for lease in snapshot.leases)
    snapshot = replace(snapshot, leases=saved, pending=(a_pending("up", "a100:2", 40, priority=upper),))
    assert taken_back(policy().decide(snapshot, EPOCH + timedelta(seconds=14))) == []
    assert taken_back(policy().decide(snapshot, EPOCH + timedelta(seconds=60))) == [("low.1", "up")]


@pytest.mark.parametrize("policy", [Assignment, PriorityPolicy])
def test_nothing_is_taken_back_for_a_request_that_is_placed_elsewhere(policy: Callable[[], Policy]) -> None:
    low = a_pending("low", "a100:2", priority="low")
    snapshot = Snapshot(1, (a_host("vm", **{"a100-80gb": 2}),), {}, (low,), can_preempt=True)
    snapshot = held(snapshot, policy().decide(snapshot, EPOCH))
    snapshot = replace(snapshot, pending=(a_pending("want", ["gpu:0.5", "cpu"], 10, priority="medium"),))
    for after_s in (12, MIN_RUN_S + 1):
        plan = policy().decide(snapshot, EPOCH + timedelta(seconds=after_s))
        assert Counter(type(decision).__name__ for decision in plan.decisions) == {"Place": 1}
        assert plan.preemptions == ()
