"""Turns by weights, quotas, borrowing, and preemption."""

from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.model.estimates import USAGE_HALF_LIFE_S, Estimates
from hetero_airflow.model.plan import Place, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.policies import load_policy
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased

FOUR = (a_worker("a", (a_cpu(), *(a_device(f"GPU-{n}", index=n) for n in range(4)))),)


def waiting(*dags, device="gpu"):
    return tuple(a_pending(f"{dag}{n}", device, at_s=n, dag_id=dag) for n, dag in enumerate(dags))


def decided(pending, shares="", *holders, can_preempt=False, now=EPOCH, **known):
    estimates = Estimates(shares=TeamShares.parse(shares), **known)
    snapshot = Snapshot(1, FOUR, pending=pending, estimates=estimates, can_preempt=can_preempt)
    return load_policy("fair_share").decide(leased(snapshot, *holders), now)


def dags(plan):
    return [decision.request_id[:-1] for decision in plan.decisions]


def held(dag, number, ago_s=3600.0, **fields):
    lease = a_lease(f"{dag}-held{number}", "a", ago_s, **{f"GPU-{number}": 1000})
    return lease.model_copy(update={"token": number + 1}), a_pending(lease.request_id, "gpu", dag_id=dag, **fields)


def test_turns_go_by_weight():
    assert dags(decided(waiting(*"aaaabbbb"), "a=3, b=1")) == list("abaaabbb")
    assert dags(decided(waiting(*"aaabbb"))) == list("ababab")


def test_a_team_of_teams_has_one_share_among_all():
    plan = decided(waiting(*"xxyyzzzz"), "team/x=1, team/y=1, z=1")
    assert dags(plan) == list("xzyzxzyz")


def test_older_use_counts_less():
    used = {"a": {"nvidia/a100": 8 * 3600.0}, "b": {"nvidia/a100": 2 * 3600.0}}
    later = EPOCH + timedelta(seconds=2 * USAGE_HALF_LIFE_S)
    assert dags(decided(waiting(*"aaabbb"), used_device_s=used, used_at=EPOCH)) == list("bbbaaa")
    old = decided(waiting(*"aaabbb"), used_device_s=used, used_at=EPOCH, now=later)
    assert dags(old) == list("bbabaa")


def test_held_devices_count_and_cores_count_apart_from_accelerators():
    assert dags(decided(waiting(*"ab"), "", held("a", 0))) == ["b", "a"]
    cores = (a_pending("a0", "cpu:2", dag_id="a"), a_pending("b0", "cpu:2", at_s=1, dag_id="b"))
    few = {"a": {"generic/x86-64": 100.0}, "b": {"nvidia/a100": 60.0}}  # of 8 cores and of 4 accelerators
    assert dags(decided(cores, used_device_s=few, used_at=EPOCH)) == ["a", "b"]


def test_a_team_above_its_quota_comes_last_and_borrows_idle_devices():
    plan = decided(waiting(*"aaaabb"), "a=9 max 2, b=1")
    assert dags(plan) == list("ababaa")
    assert [type(decision) for decision in plan.decisions] == [Place] * 4 + [Wait] * 2
    alone = decided(waiting(*"aaaa"), "a=9 max 2, b=1")
    assert [type(decision) for decision in alone.decisions] == [Place] * 4


def test_a_quota_holds_for_all_teams_below():
    plan = decided(waiting(*"xyxyzz"), "team=1 max 2, team/x=1, team/y=1, z=0.001")
    assert dags(plan) == list("xzyzxy")


def test_borrowed_devices_are_taken_back_the_youngest_lease_first():
    holders = [held("a", number, ago_s=3600.0 - number) for number in range(4)]
    plan = decided(waiting(*"bb"), "a=1 max 3, b=1 max 4", *holders, can_preempt=True)
    assert [preemption.request_id for preemption in plan.preemptions] == ["a-held3"]
    assert plan.preemptions[0].beneficiary == "b0"
    assert decided(waiting(*"bb"), "a=1 max 4, b=1", *holders, can_preempt=True).preemptions == ()
    assert decided(waiting(*"bb"), "a=1 max 2, b=1 max 0", *holders, can_preempt=True).preemptions == ()


def test_a_borrowing_gang_is_preempted_as_a_whole():
    holders = [held("a", number, ago_s=3600.0 - number) for number in range(4)]
    holders[2:] = [(lease, replace(holder, gang="g", gang_size=2)) for lease, holder in holders[2:]]
    plan = decided(waiting("b"), "a=1 max 3, b=1", *holders, can_preempt=True)
    assert {preemption.request_id for preemption in plan.preemptions} == {"a-held2", "a-held3"}


def device_s(record, group, begin_s, end_s):
    return sum(
        max(0.0, min(part.end_s, end_s) - max(part.start_s, begin_s)) * part.devices
        for job in record.jobs
        if job.group == group
        for part in job.intervals
    )


def stream(group, jobs, arrival_s=0.0, work=1700.0):
    gpu = DeviceRequest.parse("gpu")
    return [Job(f"{group}{n}", arrival_s, gpu, work + 37.0 * (n % 11), group=group) for n in range(jobs)]


def simulated(shares, *streams, **options):
    jobs = tuple(sorted((job for stream in streams for job in stream), key=lambda job: job.arrival_s))
    cluster = parse_cluster("v100=2x4")
    fair_share_options = Options(shares=TeamShares.parse(shares), **options)
    return Simulation(
        Workload("teams", jobs), cluster, load_policy("fair_share"), "fair_share", fair_share_options
    ).run()


@pytest.mark.parametrize("shares", ["small=1, large=3", "a=1, a/small=2, b=3, b/large=0.1"])
def test_under_saturation_teams_have_device_time_by_their_weights(shares):
    record = simulated(shares, stream("small", 150), stream("large", 150), until_s=40_000.0)
    small, large = (device_s(record, group, 0.0, 40_000.0) for group in ("small", "large"))
    assert small + large == pytest.approx(8 * 40_000.0)
    assert large / small == pytest.approx(3.0, rel=0.05)


def test_an_idle_teams_share_is_borrowed_and_returned():
    late = 10_000.0
    record = simulated("own=1, other=1", stream("own", 150), stream("other", 120, arrival_s=late), until_s=40_000.0)
    assert device_s(record, "own", 0.0, late) == pytest.approx(8 * late)
    before_s = 2_200.0  # the longest job: what runs when they come is not taken back
    assert device_s(record, "other", late + before_s, late + 3 * before_s) > 0.5 * 8 * 2 * before_s


def test_devices_above_a_quota_are_returned_at_once_where_leases_can_be_taken_back():
    late = 5_000.0
    record = simulated(
        "own=1 max 4, other=1 max 4", stream("own", 60, work=20_000.0), stream("other", 60, late, work=20_000.0),
        until_s=15_000.0,
    )  # fmt: skip
    assert device_s(record, "own", 0.0, late) == pytest.approx(8 * late)
    assert device_s(record, "other", late, 15_000.0) == pytest.approx(4 * 10_000.0, rel=0.02)
