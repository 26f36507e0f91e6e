"""The reservation for the head of the queue."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.plan import Place, ReasonCode, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.knowledge import KnowledgeSource
from hetero_airflow.simulator.options import Knowledge, Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased

A100 = "nvidia/a100-sxm4-40gb"
both = pytest.mark.parametrize("policy", [PriorityPolicy, Assignment])


def worker(id, gpus):
    return a_worker(id, (a_cpu(), *(a_device(f"GPU-{n}", index=n) for n in range(gpus))))


def busy(request_id, worker_id, *gpus, ago_s=0.0):
    lease = a_lease(request_id, worker_id, ago_s, **{f"GPU-{n}": 1000 for n in gpus})
    return lease.model_copy(update={"id": f"{request_id}-lease"}), a_pending(request_id, f"gpu:{len(gpus)}")


def started(policy, workers, pending, *holders, **durations_s):
    """Which requests are placed, given the durations of runs; other durations are unknown."""
    names = [("dag", name) for name in durations_s]
    known = Estimates(
        {name: {A100: 1.0} for name in names},
        {("dag", name): Interval(*[seconds] * 3) for name, seconds in durations_s.items()},
    )
    snapshot = leased(Snapshot(1, workers, pending=pending, estimates=known), *holders)
    return [
        decision.request_id for decision in policy().decide(snapshot, EPOCH).decisions if isinstance(decision, Place)
    ]


@both
def test_a_request_that_ends_before_the_heads_start_may_use_its_reserved_devices(policy):
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1))
    holder = busy("runs", "a", 0, ago_s=40.0)
    times = {"runs": 100.0, "head": 50.0}  # 60 s are left
    workers = (worker("a", 2),)
    assert started(policy, workers, pending, holder, later=60.0, **times) == ["later"]
    assert started(policy, workers, pending, holder, later=61.0, **times) == []
    assert started(policy, workers, pending, holder, **times) == [], "its duration is unknown"


@both
def test_the_end_that_a_run_reports_is_the_heads_start(policy):
    """Its high quantile: 115 of 100 s."""
    holder = busy("runs", "a", 0, ago_s=40.0)
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1))
    for later_s, expected in ((114.0, ["later"]), (116.0, [])):
        known = Estimates(
            {("dag", name): {A100: 1.0} for name in ("head", "later")},
            {("dag", "head"): Interval(50, 50, 50), ("dag", "later"): Interval(*[later_s] * 3)},
            reported_ends={holder[0].id: EPOCH + timedelta(seconds=100)},
        )
        snapshot = leased(Snapshot(1, (worker("a", 2),), pending=pending, estimates=known), holder)
        assert [place.request_id for place in policy().decide(snapshot, EPOCH).places] == expected


@both
def test_devices_that_the_head_does_not_need_are_free_for_all(policy):
    pending = (a_pending("head", "gpu:3"), a_pending("later", "gpu", 1), a_pending("last", "gpu", 2))
    holder = busy("runs", "a", 0, 1)
    assert started(policy, (worker("a", 4),), pending, holder, runs=60.0, head=50.0) == ["later"]
    elsewhere = (worker("a", 4), worker("b", 1))
    assert started(policy, elsewhere, pending, holder, runs=60.0, head=50.0) == ["later", "last"]


@both
def test_where_ends_are_unknown_the_worker_is_reserved_on_which_the_fewest_runs_have_to_end(policy):
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1), a_pending("last", "gpu", 2))
    one_of_two = (busy("a0", "a", 0), busy("a1", "a", 1))
    both_of_two, known = (busy("b0", "b", 0), busy("b1", "b", 1)), busy("c0", "c", 0)
    workers = (worker("a", 3), worker("b", 2), worker("c", 2))
    assert started(policy, workers, pending, *one_of_two, *both_of_two, known) == ["later"], "on c"
    in_time = {"later": 1.0, "last": 1.0}
    assert started(policy, workers, pending, *one_of_two, *both_of_two, known, **in_time) == ["later"], "a guess"
    known_end = {**in_time, "c0": 3600.0}
    assert started(policy, workers, pending, *one_of_two, *both_of_two, known, **known_end) == ["later", "last"]


@both
def test_of_runs_with_unknown_ends_the_one_that_frees_most_for_the_head_counts_first(policy):
    """Else two runs would have to end on a, and b, on which one has to end, would be reserved."""
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1))
    workers = (worker("a", 3), worker("b", 2))
    runs = (busy("a0", "a", 0), busy("a1", "a", 1, 2), busy("b0", "b", 0))
    assert started(policy, workers, pending, *runs) == ["later"], "on b, as a is reserved"


@both
def test_a_run_that_has_taken_long_is_expected_to_take_as_long_again(policy):
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1))
    workers, pair = (worker("a", 2), worker("b", 2)), (busy("b0", "b", 0), busy("b1", "b", 1))
    assert started(policy, workers, pending, busy("a0", "a", 0, ago_s=4 * 3600), *pair) == [], "a is reserved"
    assert started(policy, workers, pending, busy("a0", "a", 0, ago_s=7 * 3600), *pair) == ["later"], "b is reserved"


@both
def test_the_worker_that_is_free_first_is_reserved(policy):
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu:1", 1), a_pending("last", "gpu:1", 2))
    holders = (busy("long", "a", 0), busy("short", "b", 0))
    workers = (worker("a", 2), worker("b", 2))
    assert started(policy, workers, pending, *holders, long=90.0, short=60.0, head=9.0) == ["later"]


@both
def test_requests_placed_before_the_head_count_with_their_expected_ends(policy):
    pending = (a_pending("first", at_s=-300), a_pending("head", "gpu:2", -200), a_pending("later", "gpu", -100))
    times = {"first": 30.0, "head": 9.0}
    assert started(policy, (worker("a", 2),), pending, later=30.0, **times) == ["first", "later"]
    assert started(policy, (worker("a", 2),), pending, later=31.0, **times) == ["first"]


@both
def test_devices_of_short_runs_are_not_reserved_twice(policy):
    lease, holder = busy("runs", "a", 0)
    half = replace(lease.claims[0], share_milli=500, memory_bytes=20 * 2**30)
    texts = {"head": "gpu:0.75", "large": "gpu:0.5", "short": "gpu:0.25", "long": "gpu:0.25"}
    pending = tuple(a_pending(name, text, at_s) for at_s, (name, text) in enumerate(texts.items()))
    placed = started(
        policy, (worker("a", 1),), pending, (lease.model_copy(update={"claims": (half,)}), holder),
        runs=60.0, head=10.0, large=99.0, short=30.0, long=99.0,
    )  # fmt: skip
    assert placed == ["short", "long"]


@both
def test_a_run_that_takes_longer_than_expected_gets_a_new_expected_end(policy):
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1))
    holder = busy("runs", "a", 0, ago_s=120.0)
    known = Estimates(
        {("dag", name): {A100: 1.0} for name in ("runs", "head", "later")},
        {
            ("dag", "runs"): Interval(50, 80, 100),
            ("dag", "head"): Interval(9, 9, 9),
            ("dag", "later"): Interval(1, 1, 1),
        },
    )
    snapshot = leased(Snapshot(1, (worker("a", 2),), pending=pending, estimates=known), holder)
    assert [place.request_id for place in policy().decide(snapshot, EPOCH).places] == ["later"]


@both
def test_a_waiting_gang_reserves_everything_that_it_could_use(policy):
    gang = tuple(a_pending(f"g{n}", "gpu", -100, gang="g", gang_size=2) for n in range(2))
    pending = (*gang, a_pending("later", "gpu", 1))
    times = {"runs": 60.0, "g0": 5.0, "g1": 5.0, "later": 1.0}
    assert started(policy, (worker("a", 2),), pending, busy("runs", "a", 0), **times) == []


@both
def test_the_reason_names_the_reservation(policy):
    pending = (a_pending("head", "gpu:2"), a_pending("later", "gpu", 1))
    known = Estimates({("dag", "runs"): {A100: 1.0}}, {("dag", "runs"): Interval(60, 60, 60)})
    snapshot = leased(Snapshot(1, (worker("a", 2),), pending=pending, estimates=known), busy("runs", "a", 0))
    waits = [decision for decision in policy().decide(snapshot, EPOCH).decisions if isinstance(decision, Wait)]
    assert [wait.reason.code for wait in waits] == [ReasonCode.BUSY, ReasonCode.RESERVED]


# Properties: as long as estimates are upper bounds, those behind the head don't delay it.

CLUSTER = parse_cluster("v100=2x3,k80=1x2")
TEXTS = ("v100", "v100:2", "v100:3", "k80", "k80:2", "gpu", "gpu:2", "v100:0.5", "cpu:2")


def simulated(jobs: tuple[Job, ...], policy: Policy, known_jobs: tuple[Job, ...] | None = None) -> dict[str, float]:
    """When each job starts, if the policy knows the exact work, or that of other jobs of the same names."""
    classes = frozenset(device_class(device) for worker in CLUSTER for device in worker.devices)
    informant = KnowledgeSource(Workload("known", known_jobs or jobs), classes, Knowledge.ORACLE)
    options = Options(knowledge=Knowledge.ORACLE)
    workload, estimates = Workload("queue", jobs), informant.estimates()
    record = Simulation(workload, CLUSTER, policy, "it", options, estimates=estimates).run()
    return {job.id: job.started_s for job in record.jobs if job.started_s is not None}


@pytest.mark.parametrize("policy", [PriorityPolicy, Fifo])
@pytest.mark.parametrize("is_exact", [True, False])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_backfill_never_delays_the_head(policy: type[Policy], is_exact: bool, seed: int) -> None:
    """If all runs were as long as expected, and no request stood behind it, it would start no sooner."""
    rng = random.Random(seed)
    speeds = {"nvidia/v100": 2.0, "*": 1.0}
    foreseen = tuple(
        Job(f"j{n:02}", 0.0, DeviceRequest.parse(rng.choice(TEXTS)), float(rng.randint(1, 30)), speeds)
        for n in range(14)
    )
    jobs = foreseen if is_exact else tuple(replace(job, work=job.work * rng.uniform(0.2, 1)) for job in foreseen)
    crowded = simulated(jobs, policy(), foreseen)
    head = next((n for n, job in enumerate(jobs) if crowded[job.id] > 0), None)
    if head is not None:
        assert crowded[jobs[head].id] <= simulated(foreseen[: head + 1], policy())[jobs[head].id]


@both
def test_an_alternative_counts_where_it_is_usable(policy):
    request = a_pending("later", ["gpu", "cpu"], 1)
    request = replace(request, request=request.request.model_copy(update={"is_ordered": False}))
    pending = (a_pending("head", "gpu:2"), request)
    assert started(policy, (worker("a", 2),), pending, busy("runs", "a", 0), runs=60.0, later=99.0) == ["later"]
