"""What policies made of weights do with waiting and running requests: over the store, the cycle and the simulator."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Place, Plan, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import MIN_RUN_S, DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.class_assignment import weighted_assignment
from hetero_airflow.policies.class_assignment.weighted_assignment import MAX_INTERRUPTIONS, WeightedAssignment
from hetero_airflow.policies.makespan import Makespan
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending
from tests.benchmarks.baselines import LoadBalance
from tests.effort import effort, long

POLICIES = [Assignment, Makespan, LoadBalance]
V100, P100, K80 = "nvidia/v100", "nvidia/p100", "nvidia/k80"
FOUR = [{V100: 1.0, K80: speed} for speed in (0.9, 0.2, 0.5, 0.7)]


def a_host(id: str, **counts: int) -> Worker:
    """A worker with so many devices of each model."""
    models = [model for model, count in counts.items() for _ in range(count)]
    devices = [a_device(f"{id}-{n}", model, "16GiB", index=n) for n, model in enumerate(models)]
    return Worker(id=id, host=id, devices=(a_cpu(), *devices))


def known(*tasks: tuple[str, dict[str, float]]) -> Estimates:
    return Estimates({("dag", task): speeds for task, speeds in tasks})


def held(snapshot: Snapshot, plan: Plan, now: datetime = EPOCH) -> Snapshot:
    """The snapshot after the plan's placements are committed."""
    pending = {request.id: request for request in snapshot.pending}
    leases, usage = list(snapshot.leases), dict(snapshot.usage)
    for token, place in enumerate(plan.places, len(leases) + 1):
        leases.append(
            Lease(id=f"{place.request_id}.{token}", request_id=place.request_id, worker_id=place.worker_id,
                  alternative=place.alternative, claims=place.claims, token=token, state=LeaseState.ACTIVE,
                  granted_at=now, expires_at=now + timedelta(days=1))
        )  # fmt: skip
        for claim in place.claims:
            usage[place.worker_id, claim.device_id] = DeviceUsage(claim.share_milli, claim.memory_bytes, now)
    placed = {place.request_id for place in plan.places}
    holders = dict(snapshot.holders) | {i: pending[i] for i in placed}
    waiting = tuple(request for request in snapshot.pending if request.id not in placed)
    return replace(snapshot, pending=waiting, leases=tuple(leases), usage=usage, holders=holders)


def freed(snapshot: Snapshot, plan: Plan, now: datetime) -> Snapshot:
    """The snapshot after the preempted requests have saved and ended."""
    freed_leases = {preemption.lease_id for preemption in plan.preemptions}
    back, usage = [], dict(snapshot.usage)
    for lease in snapshot.leases:
        if lease.id in freed_leases:
            holder = snapshot.holders[lease.request_id]
            model = lease.worker_id.split("-")[0]
            back.append(
                replace(holder, attained_service_s={f"nvidia/{model}": (now - lease.granted_at).total_seconds()})
            )
            for claim in lease.claims:
                del usage[lease.worker_id, claim.device_id]
    names = {request.id for request in back}
    return replace(
        snapshot,
        pending=(*snapshot.pending, *back),
        leases=tuple(lease for lease in snapshot.leases if lease.id not in freed_leases),
        usage=usage,
        holders={i: holder for i, holder in snapshot.holders.items() if i not in names},
    )


def where(plan: Plan) -> dict[str, str]:
    return {place.request_id: place.worker_id for place in plan.places}


def anywhere(id: str, at_s: float = 0, count: int = 1, **fields: object) -> PendingRequest:
    return a_pending(id, {f"v100:{count}", f"k80:{count}"}, at_s, **fields)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("can_preempt", [True, False])
def test_the_fast_device_goes_to_the_request_that_the_slow_one_costs_most(
    policy: type[WeightedAssignment], can_preempt: bool
) -> None:
    workers = (a_host("v100-0", v100=1), a_host("k80-0", k80=1))
    estimates = known(("keeps", FOUR[0]), ("loses", FOUR[1]))
    snapshot = Snapshot(
        1, workers, {}, (anywhere("keeps"), anywhere("loses", 1)), estimates=estimates, can_preempt=can_preempt
    )
    assert where(policy().decide(snapshot, EPOCH)) == {"keeps": "k80-0", "loses": "v100-0"}


def test_an_arriving_request_gets_the_device_of_the_one_that_loses_less_and_both_run_next() -> None:
    workers = (a_host("v100-0", v100=1), a_host("k80-0", k80=1))
    estimates = known(("keeps", FOUR[0]), ("loses", FOUR[1]))
    alone = Snapshot(1, workers, {}, (anywhere("keeps"),), estimates=estimates, can_preempt=True)
    first = Assignment().decide(alone, EPOCH)
    now = EPOCH + timedelta(hours=1)
    crowded = replace(held(alone, first), pending=(anywhere("loses", 3600),))
    second = Assignment().decide(crowded, now)
    assert where(first) == {"keeps": "v100-0"}
    assert [(preemption.request_id, preemption.beneficiary) for preemption in second.preemptions] == [
        ("keeps", "loses")
    ]
    assert second.preemptions[0].cause == (
        "to move to nvidia/k80, where it runs about 0.9 times as fast: loses gains more from its devices, since it "
        "would run about 0.2 times as fast on nvidia/k80. loses has run for 0 s, this task for 1 h"
    )
    assert second.places == ()
    third = Assignment().decide(freed(crowded, second, now), now)
    assert where(third) == {"keeps": "k80-0", "loses": "v100-0"}
    assert third.preemptions == ()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_request_moves_for_less_than_its_restart_costs(policy: type[WeightedAssignment]) -> None:
    workers = (a_host("v100-0", v100=1), a_host("k80-0", k80=1))
    estimates = known(("task", {V100: 1.0, K80: 0.999}))
    running = Snapshot(1, workers, {}, (anywhere("task"),), estimates=estimates, can_preempt=True)
    on_k80 = replace(running, workers=workers[1:])
    snapshot = replace(held(running, policy().decide(on_k80, EPOCH)), workers=workers)
    assert policy().decide(snapshot, EPOCH + timedelta(hours=1)).preemptions == ()


def test_devices_that_are_about_to_be_free_are_not_promised_twice() -> None:
    workers = (a_host("v100-0", v100=2),)
    snapshot = Snapshot(1, workers, {}, (a_pending("one", "v100"), a_pending("two", "v100")), can_preempt=True)
    snapshot = held(snapshot, Assignment().decide(snapshot, EPOCH))
    both = a_pending("both", "v100:2", 60, priority="urgent")
    assert Assignment().decide(replace(snapshot, pending=(both,)), EPOCH + timedelta(seconds=60)).preemptions == ()
    first_plan = Assignment().decide(replace(snapshot, pending=(both,)), EPOCH + timedelta(seconds=MIN_RUN_S))
    assert sorted(preemption.request_id for preemption in first_plan.preemptions) == ["one", "two"]
    first_plan = replace(
        first_plan,
        preemptions=tuple(preemption for preemption in first_plan.preemptions if preemption.request_id == "two"),
    )
    after_first = freed(snapshot, first_plan, EPOCH)
    leaving = tuple(lease.model_copy(update={"state": LeaseState.PREEMPTED}) for lease in after_first.leases)
    later = a_pending("later", "v100", MIN_RUN_S + 1)
    between = replace(after_first, leases=leaving, pending=(*after_first.pending, both, later))
    plan = Assignment().decide(between, EPOCH + timedelta(seconds=MIN_RUN_S + 2))
    assert plan.preemptions == ()
    assert plan.places == ()
    assert next(decision.request_id for decision in plan.decisions) == "both"


def two_apart(**fields: object) -> Snapshot:
    """Two small requests that run on one of two V100s each; a large one has come a minute later."""
    workers = (a_host("v100-0", v100=2), a_host("v100-1", v100=2))
    small = tuple(a_pending(name, "v100", **fields) for name in "ab")
    snapshot = Snapshot(1, workers, {}, small, can_preempt=True)
    claim = {on: Claim(device_id=f"{on}-0", share_milli=1000, memory_bytes=16 * 2**30) for on in ("v100-0", "v100-1")}
    account = Assignment().decide(snapshot, EPOCH).places[0].account
    apart = Plan(tuple(Place(r, w, 0, (claim[w],), account) for r, w in (("a", "v100-0"), ("b", "v100-1"))))
    return replace(held(snapshot, apart), pending=(a_pending("large", "v100:2", 60),))


def test_small_requests_go_together_so_that_a_large_one_finds_a_worker() -> None:
    snapshot, now = two_apart(), EPOCH + timedelta(seconds=MIN_RUN_S)
    assert Assignment().decide(snapshot, EPOCH + timedelta(seconds=60)).preemptions == ()
    plan = Assignment().decide(snapshot, now)
    assert len(plan.preemptions) == 1
    after = Assignment().decide(freed(snapshot, plan, now), now)
    assert after.preemptions == ()
    assert {place.request_id for place in after.places} == {"large", plan.preemptions[0].request_id}


def test_a_higher_class_takes_the_device_of_a_lower_one() -> None:
    workers = (a_host("v100-0", v100=1),)
    snapshot = Snapshot(1, workers, {}, (a_pending("low", "v100", priority="low"),), can_preempt=True)
    snapshot = held(snapshot, Assignment().decide(snapshot, EPOCH))
    waiting = (a_pending("high", "v100", 60, priority="high"),)
    plan = Assignment().decide(replace(snapshot, pending=waiting), EPOCH + timedelta(days=9))
    assert [(preemption.request_id, preemption.beneficiary) for preemption in plan.preemptions] == [("low", "high")]


def test_a_request_that_was_delayed_for_very_long_comes_first() -> None:
    workers = (a_host("v100-0", v100=1),)
    snapshot = Snapshot(1, workers, {}, (a_pending("young", "v100", 50 * 86400), a_pending("old", "v100")))
    preemptive = replace(snapshot, can_preempt=True)
    assert where(Assignment().decide(preemptive, EPOCH + timedelta(days=50))) == {"old": "v100-0"}


def test_a_request_that_says_what_it_prefers_gets_it_where_it_is_free() -> None:
    workers = (a_host("v100-0", v100=1), a_host("k80-0", k80=1))
    estimates = known(("choosy", {V100: 1.0, K80: 5.0}))
    snapshot = Snapshot(1, workers, {}, (a_pending("choosy", ["v100", "k80"]),), estimates=estimates, can_preempt=True)
    assert where(Assignment().decide(snapshot, EPOCH)) == {"choosy": "v100-0"}


def test_a_better_fit_never_costs_an_older_request_its_place() -> None:
    devices = [["v100:2", "k80"], "gpu", "v100", "gpu"]
    pending = tuple(a_pending(f"r{n}", device, at_s=n, task_id="train") for n, device in enumerate(devices))
    workers = (a_host("v100-0", v100=3), a_host("k80-0", k80=1))
    snapshot = Snapshot(1, workers, pending=pending, estimates=known(("train", {V100: 1.0, K80: 0.1})))
    plan = Assignment().decide(snapshot, EPOCH + timedelta(hours=1))
    assert [place.request_id for place in plan.places] == ["r0", "r1", "r3"], "r2 can't use the K80"


def test_a_share_and_a_cpu_are_placed_beside() -> None:
    workers = (a_host("v100-0", v100=2),)
    pending = (a_pending("whole", "v100"), a_pending("half", "v100:0.5"), a_pending("cores", "cpu:2"))
    snapshot = Snapshot(1, workers, {}, pending, can_preempt=True)
    assert where(Assignment().decide(snapshot, EPOCH)) == dict.fromkeys(("whole", "half", "cores"), "v100-0")


def test_a_request_that_the_assignment_leaves_out_waits_for_a_device() -> None:
    workers = (a_host("v100-0", v100=1),)
    snapshot = Snapshot(1, workers, {}, (a_pending("a", "v100"), a_pending("b", "v100", 1)), can_preempt=True)
    plan = Assignment().decide(snapshot, EPOCH + timedelta(seconds=2))
    assert [
        (decision.request_id, decision.reason.code) for decision in plan.decisions if isinstance(decision, Wait)
    ] == [("b", "busy")]
    assert plan_faults(snapshot, plan) == []


def jobs(number: int, count: int = 1) -> tuple[Job, ...]:
    """One every 100 s, of 1000 to 4000 s on a V100."""
    requests = {model: f"{model}:{count}" for model in ("v100", "k80")}
    request = DeviceRequest.parse(set(requests.values()))
    return tuple(
        Job(f"{n:02}", n * 100.0, request, 1000.0 * (1 + n % 4), FOUR[n % 3], f"task-{n % 3}") for n in range(number)
    )


@pytest.mark.parametrize(
    ("policy", "knowledge"), [*((policy, Knowledge.SPEEDS) for policy in POLICIES), (Assignment, Knowledge.NONE)]
)
def test_each_moment_is_settled_in_two_cycles(policy: type[WeightedAssignment], knowledge: Knowledge) -> None:
    preempted_at: list[tuple[datetime, int]] = []

    class Watched(policy):  # type: ignore[misc, valid-type]
        def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
            plan = super().decide(snapshot, now)
            assert plan_faults(snapshot, plan) == []
            preempted_at.append((now, len(plan.preemptions)))
            return plan

    options = Options(restart_s=fixed_restart_s(60), knowledge=knowledge)
    record = Simulation(Workload("jobs", jobs(30)), parse_cluster("v100=2,k80=2"), Watched(), "watched", options).run()
    assert all(job.finished_s is not None for job in record.jobs)
    assert any(preempted for _, preempted in preempted_at)
    for (before, preempted), (now, again) in pairwise(preempted_at):
        assert not (now == before and preempted and again)


def test_makespan_gives_the_longest_job_the_fast_device() -> None:
    workload = Workload("three", (*jobs(3), Job("long", 300.0, jobs(1)[0].request, 20_000.0, FOUR[1], "long")))
    options = Options(restart_s=fixed_restart_s(60), knowledge=Knowledge.ORACLE)
    record = Simulation(workload, parse_cluster("v100=1,k80=1"), Makespan(), "makespan", options).run()
    assert max(job.finished_s or 0.0 for job in record.jobs) == 20_300.0


def test_load_balance_lets_the_shortest_job_pass() -> None:
    request = jobs(1)[0].request
    pair = (Job("long", 0.0, request, 9000.0, FOUR[1], "long"), Job("short", 400.0, request, 600.0, FOUR[1], "short"))
    options = Options(restart_s=fixed_restart_s(0), knowledge=Knowledge.ORACLE)
    record = Simulation(Workload("pair", pair), parse_cluster("v100=1,k80=1"), LoadBalance(), "balance", options).run()
    assert {job.id: job.finished_s for job in record.jobs} == {"short": 1000.0, "long": 9000.0 + 600.0 * (1 - 0.2)}


def mixed_jobs(seed: int) -> tuple[Job, ...]:
    """60 jobs of 1 to 8 devices and unlike speeds, four an hour, of 10 minutes to 4 hours."""
    rng = random.Random(seed)
    made, at_s = [], 0.0
    for number in range(60):
        at_s += rng.expovariate(4 / 3600)
        count, kind = rng.choice((1, 1, 2, 4, 8)), rng.randrange(8)
        speeds = {V100: 1.0, P100: 0.3 + 0.1 * (kind % 4), K80: 0.15 + 0.1 * (kind % 3)}
        request = DeviceRequest.parse({f"{model}:{count}" for model in ("v100", "p100", "k80")})
        made.append(Job(f"{number:02}", at_s, request, rng.uniform(600, 14_400), speeds, f"task-{kind}"))
    return tuple(made)


@pytest.mark.parametrize("knowledge", [Knowledge.SPEEDS, Knowledge.PROGRESS])
@long
@pytest.mark.parametrize("seed", range(effort(2, 6)))
def test_a_holder_of_several_devices_keeps_them_for_its_minimum_run_time(seed: int, knowledge: Knowledge) -> None:
    options = Options(restart_s=fixed_restart_s(60), knowledge=knowledge)
    workload = Workload("mixed", mixed_jobs(seed))
    record = Simulation(workload, parse_cluster("v100=8,p100=8,k80=8"), Assignment(), "assignment", options).run()
    assert all(job.finished_s is not None for job in record.jobs)
    taken_back = [interval for job in record.jobs for interval in job.intervals[:-1]]
    assert taken_back
    shortest_s = min(interval.end_s - interval.start_s for interval in taken_back)
    assert shortest_s >= MIN_RUN_S - 1e-3, "simulated times are in microseconds"


@long
@pytest.mark.parametrize("seed", range(effort(1, 4)))
def test_after_many_interruptions_a_request_never_moves_to_slower_devices(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighted_assignment, "MAX_INTERRUPTIONS", 2)
    options = Options(restart_s=fixed_restart_s(60), knowledge=Knowledge.SPEEDS)
    workload = Workload("mixed", mixed_jobs(seed))
    speeds = {job.id: job.speeds for job in workload.jobs}
    record = Simulation(workload, parse_cluster("v100=8,p100=8,k80=8"), Assignment(), "assignment", options).run()
    assert all(job.finished_s is not None for job in record.jobs)
    later = [(job.id, *pair) for job in record.jobs for pair in pairwise(job.intervals[2:])]
    assert later
    for job_id, before, after in later:
        assert speeds[job_id][after.device_class] >= speeds[job_id][before.device_class]


def running(**fields: object) -> Snapshot:
    """An hour ago, this request of a long-running task got the K80 of the first host."""
    pending = (anywhere("runs", attained_service_s={K80: 36_000.0}, **fields),)
    snapshot = Snapshot(1, (a_host("k80-0", k80=1),), {}, pending, can_preempt=True, estimates=known(("runs", FOUR[1])))
    return held(snapshot, Assignment().decide(snapshot, EPOCH))


@pytest.mark.parametrize(
    ("interruptions", "waited_s", "priority", "gives_way"),
    [
        (0, 0, "medium", True),
        (MAX_INTERRUPTIONS - 1, 5e6, "medium", True),
        (MAX_INTERRUPTIONS, 5e6, "medium", False),
        (MAX_INTERRUPTIONS, 0, "high", True),
    ],
)
def test_a_request_gives_way_to_its_own_class_until_it_was_interrupted_often(
    interruptions: int, waited_s: float, priority: str, gives_way: bool
) -> None:
    now = EPOCH + timedelta(hours=1)
    waiting = a_pending("waits", "k80", 3600 - waited_s, priority=priority)
    plan = Assignment().decide(replace(running(interruptions=interruptions), pending=(waiting,)), now)
    assert len(plan.preemptions) == gives_way


def test_a_notice_says_how_long_both_have_to_run_where_that_is_known() -> None:
    hour = Interval(3600.0, 3600.0, 3600.0)
    estimates = Estimates({("dag", name): {K80: 1.0} for name in ("runs", "waits")}, {("dag", "runs"): hour})
    for works, remaining in (
        (estimates.works, ""),
        ({**estimates.works, ("dag", "waits"): hour}, "; on their fastest devices, they need about 1 h and 10 h"),
    ):
        snapshot = replace(running(), pending=(a_pending("waits", "k80", 3600),))
        plan = Assignment().decide(
            replace(snapshot, estimates=replace(estimates, works=works)), EPOCH + timedelta(hours=1)
        )
        assert [preemption.cause for preemption in plan.preemptions] == [
            "to wait or to go elsewhere: waits gains more from its devices. "
            f"waits has run for 0 s, this task for 11 h{remaining}"
        ]


def test_a_request_that_gives_way_no_more_still_moves_to_a_faster_device() -> None:
    snapshot = running(interruptions=MAX_INTERRUPTIONS)
    snapshot = replace(snapshot, workers=(*snapshot.workers, a_host("v100-0", v100=1)))
    plan = Assignment().decide(snapshot, EPOCH + timedelta(hours=1))
    assert [preemption.cause for preemption in plan.preemptions] == [
        "to move to nvidia/v100, where it runs about 5 times as fast"
    ]


def test_a_request_that_gives_way_no_more_does_not_go_elsewhere_for_a_large_one() -> None:
    snapshot = two_apart(interruptions=MAX_INTERRUPTIONS)
    assert Assignment().decide(snapshot, EPOCH + timedelta(hours=1)).preemptions == ()


def test_of_requests_that_give_way_no_more_the_one_that_runs_goes_on() -> None:
    pair = a_pending("pair", "v100:2", interruptions=MAX_INTERRUPTIONS)
    snapshot = Snapshot(1, (a_host("v100-0", v100=2),), {}, (pair,), can_preempt=True)
    snapshot = held(snapshot, Assignment().decide(snapshot, EPOCH))
    singles = tuple(a_pending(name, "v100", -5e6, interruptions=MAX_INTERRUPTIONS) for name in "ab")
    assert Assignment().decide(replace(snapshot, pending=singles), EPOCH + timedelta(hours=1)).preemptions == ()


def test_a_higher_class_gets_its_best_device_however_often_the_holder_was_interrupted() -> None:
    low = (
        a_pending("often", "v100", priority="low", interruptions=MAX_INTERRUPTIONS),
        a_pending("never", "k80", priority="low"),
    )
    workers, estimates = (a_host("v100-0", v100=1), a_host("k80-0", k80=1)), known(("high", FOUR[1]))
    snapshot = Snapshot(1, workers, {}, low, can_preempt=True, estimates=estimates)
    snapshot = held(snapshot, Assignment().decide(snapshot, EPOCH))
    snapshot = replace(snapshot, pending=(anywhere("high", 60, priority="high"),))
    plan = Assignment().decide(snapshot, EPOCH + timedelta(hours=1))
    assert [(preemption.request_id, preemption.beneficiary) for preemption in plan.preemptions] == [("often", "high")]


def test_a_request_that_makes_room_for_one_that_moves_is_told_for_which() -> None:
    speeds = {"a": {V100: 1.0, P100: 0.9, K80: 0.9}, "b": {V100: 1.0, P100: 0.2, K80: 0.1}}
    hosts = [a_host("v100-0", v100=1), a_host("p100-0", p100=1), a_host("k80-0", k80=1)]
    snapshot = Snapshot(1, (), can_preempt=True, estimates=known(*speeds.items()))
    for name, host in zip("ab", hosts, strict=False):
        request = a_pending(name, {"v100", "p100", "k80"})
        alone = replace(snapshot, workers=(host,), pending=(request,), usage={}, leases=())
        placed = held(alone, Assignment().decide(alone, EPOCH))
        lease = placed.leases[0].model_copy(update={"token": len(snapshot.leases) + 1})
        snapshot = replace(
            snapshot, leases=(*snapshot.leases, lease), usage={**snapshot.usage, **placed.usage},
            holders={**snapshot.holders, **placed.holders},
        )  # fmt: skip
    snapshot = replace(snapshot, workers=tuple(hosts), pending=(a_pending("c", "p100", 3600),))
    plan = Assignment().decide(snapshot, EPOCH + timedelta(hours=1))
    assert {preemption.request_id: preemption.beneficiary for preemption in plan.preemptions} == {"a": "b", "b": "c"}
    assert [preemption.cause.partition(". ")[2] for preemption in plan.preemptions] == [
        "b has run for 1 h, this task for 1 h",
        "c has run for 0 s, this task for 1 h",
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_that_is_longer_than_expected_still_has_remaining_work(policy: type[WeightedAssignment]) -> None:
    estimates = Estimates({("dag", "task"): {V100: 1.0}}, {("dag", "task"): Interval(10, 20, 30)})
    pending = (a_pending("task", "v100", attained_service_s={V100: 1000.0}),)
    snapshot = Snapshot(1, (a_host("v100-0", v100=1),), {}, pending, estimates=estimates, can_preempt=True)
    assert where(policy().decide(snapshot, EPOCH + timedelta(seconds=2000))) == {"task": "v100-0"}
