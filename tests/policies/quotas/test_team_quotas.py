"""Quotas hold under every policy; what a team does not use is lent, by weight, and given back."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Place, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.policies import POLICIES, load_policy
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.quotas.team_quotas import TeamQuotas
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased

BY_SERVICE = {"assignment", "max_min_fairness"}
"""Policies that take back what has run long by a rule of their own."""
every_policy = pytest.mark.parametrize("policy", POLICIES)


def host(name, gpus=4):
    return a_worker(name, (a_cpu(), *(a_device(f"{name}-{n}", index=n) for n in range(gpus))))


def waiting(*dags, device="gpu", **fields):
    return tuple(a_pending(f"{dag}{n}", device, at_s=n, dag_id=dag, **fields) for n, dag in enumerate(dags))


def held(dag, number, **fields):
    lease = a_lease(f"{dag}-held{number}", "a", 3600.0 - number, **{f"a-{number}": 1000})
    return lease.model_copy(update={"token": number + 1}), a_pending(lease.request_id, "gpu", dag_id=dag, **fields)


FOUR = (host("a"),)


def a_snapshot(pending, shares, *holders, workers=FOUR, can_preempt=False):
    estimates = Estimates(shares=TeamShares.parse(shares))
    snapshot = Snapshot(1, workers, pending=pending, estimates=estimates, can_preempt=can_preempt)
    return leased(snapshot, *holders)


def decided(policy, snapshot):
    plan = load_policy(policy).decide(snapshot, EPOCH)
    assert plan_faults(snapshot, plan) == []
    return plan


def placed(plan):
    return sorted(place.request_id for place in plan.places)


@every_policy
def test_a_team_at_its_quota_waits_while_others_wait_for_the_devices(policy):
    snapshot = a_snapshot(waiting(*"ppppprrrr"), "p=1 max 2, r=1")
    plan = decided(policy, snapshot)
    assert Counter(name[0] for name in placed(plan)) == {"p": 2, "r": 2}
    reasons = {wait.request_id[0]: wait.reason for wait in plan.decisions if isinstance(wait, Wait)}
    assert reasons["p"] == Reason(ReasonCode.QUOTA, "1 × gpu", "team p has 2 of its 2 devices, and none to borrow")
    assert reasons["r"].code is not ReasonCode.QUOTA


@every_policy
def test_a_team_above_its_quota_borrows_what_nobody_within_a_quota_can_use(policy):
    assert len(decided(policy, a_snapshot(waiting(*"pppp"), "p=1 max 2")).places) == 4
    unlike = (*waiting(*"pppp"), a_pending("r9", "cpu:1000", dag_id="r"))
    assert len(decided(policy, a_snapshot(unlike, "p=1 max 2, r=1")).places) == 4


def test_a_team_borrows_nothing_that_a_waiting_request_within_a_quota_could_use_later():
    large = a_pending("r9", "gpu:4", at_s=9, dag_id="r")
    snapshot = a_snapshot((*waiting(*"ppp"), large), "p=1 max 1, r=1", held("r", 0), workers=(host("a"), host("b", 1)))
    plan = decided("fifo", snapshot)
    assert [(place.request_id, place.worker_id) for place in plan.places] == [("p0", "b")]
    reason = plan.decisions[-1].reason
    assert reason.found == "team p has 1 of its 1 device, and none to borrow"


@every_policy
def test_without_quotas_the_policy_decides_alone(policy):
    snapshot = a_snapshot(waiting(*"pprrr"), "p=3, r=1", held("p", 0), can_preempt=True)
    plan = load_policy(policy)
    assert plan.decide(snapshot, EPOCH) == plan.wrapped.decide(snapshot, EPOCH)


@every_policy
def test_lent_devices_are_given_back(policy):
    holders = [held("p", number) for number in range(4)]
    snapshot = a_snapshot(waiting(*"rr"), "p=1 max 3, r=1 max 4", *holders, can_preempt=True)
    preempted = {preemption.request_id for preemption in decided(policy, snapshot).preemptions}
    assert preempted == {"p-held3"} or (policy in BY_SERVICE and preempted)
    ending = [(lease.model_copy(update={"state": LeaseState.PREEMPTED}), holder) for lease, holder in holders[3:]]
    after = a_snapshot(waiting(*"rr"), "p=1 max 3, r=1 max 4", *holders[:3], *ending, can_preempt=True)
    assert policy in BY_SERVICE or decided(policy, after).preemptions == ()


def test_a_gang_is_within_a_quota_as_a_whole_or_not_at_all():
    gang = waiting(*"ppp", gang="g", gang_size=3)
    plan = decided("fifo", a_snapshot((*gang, *waiting(*"rrrr")), "p=1 max 2"))
    assert placed(plan) == ["r0", "r1", "r2", "r3"]
    assert len(decided("fifo", a_snapshot(gang, "p=1 max 2")).places) == 3


def test_lent_devices_are_divided_by_weight():
    snapshot = a_snapshot(waiting(*"ppppqqqq"), "p=1 max 0, q=3 max 0")
    assert Counter(name[0] for name in placed(decided("fifo", snapshot))) == {"p": 1, "q": 3}
    kinds = (*waiting(*"pppp", device="cpu:1"), *waiting(*"qq", device="gpu:3"))
    assert len(decided("fifo", a_snapshot(kinds, "p=1 max 0, q=1 max 0")).places) == 5  # cores count in no quota


def test_a_quota_of_a_parent_holds_for_all_teams_below_and_is_named():
    plan = decided("priority", a_snapshot(waiting(*"xyxyzzz"), "team=1 max 2, team/x=1, team/y=1"))
    assert Counter(name[0] for name in placed(plan)) == {"x": 1, "y": 1, "z": 2}
    assert plan.decisions[-1].reason.found == "team team has 2 of its 2 devices, and none to borrow"


def test_a_request_that_no_worker_can_run_is_refused_whatever_its_quota():
    plan = decided("fifo", a_snapshot((a_pending("p0", "h100", dag_id="p"),), "p=1 max 0"))
    assert isinstance(plan.decisions[0], Refuse)


def test_decisions_are_in_one_queue_and_the_first_time_to_decide_again_counts():
    class Timed(Fifo):
        period_s = 7.0

        def decide(self, snapshot, now):
            return replace(super().decide(snapshot, now), until=now + timedelta(seconds=len(snapshot.pending)))

    policy = TeamQuotas(Timed())
    plan = policy.decide(a_snapshot(waiting(*"ppprrrr"), "p=1 max 1"), EPOCH)
    assert [type(decision) for decision in plan.decisions].count(Place) == 4
    assert [wait.position for wait in plan.decisions if isinstance(wait, Wait)] == [1, 2, 3]
    assert (policy.name, policy.period_s, plan.until) == ("fifo", 7.0, EPOCH + timedelta(seconds=5))


@pytest.mark.parametrize("policy", ["priority", "assignment", "makespan", "fair_share"])
def test_in_a_simulation_a_team_has_more_than_its_quota_only_while_others_need_nothing(policy):
    gpu = DeviceRequest.parse("gpu")
    late = 5_000.0
    jobs = [Job(f"p{n}", 0.0, gpu, 9_000.0 + n, group="prod") for n in range(30)]
    jobs += [Job(f"r{n}", late, gpu, 9_000.0 + n, group="research") for n in range(30)]
    options = Options(shares=TeamShares.parse("prod=1 max 3"), until_s=20_000.0)
    workload = Workload("teams", tuple(jobs))
    record = Simulation(workload, parse_cluster("v100=2x4"), load_policy(policy), policy, options).run()

    def device_s(group, begin_s, end_s):
        parts = (part for job in record.jobs if job.group == group for part in job.intervals)
        return sum(max(0.0, min(part.end_s, end_s) - max(part.start_s, begin_s)) * part.devices for part in parts)

    assert device_s("prod", 0.0, late) == pytest.approx(8 * late, rel=0.01)
    both = [device_s(group, late + 600.0, 20_000.0) for group in ("prod", "research")]
    assert both[0] <= 1.03 * 3 * 14_400.0
    assert sum(both) == pytest.approx(8 * 14_400.0, rel=0.03)
