"""Critical path and HEFT: the ranks, which request goes first, and where."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.estimates import NO_ESTIMATES, Estimates, Interval
from hetero_airflow.model.plan import Place, ReasonCode, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.upward_rank import UNKNOWN_S, UpwardRanks
from hetero_airflow.policies.critical_path import CriticalPath
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces.generated import dag_runs, poisson_arrivals, random_design
from hetero_airflow.testing import EPOCH, a_lease, a_pending, leased
from tests.benchmarks.baselines import Heft

CLUSTER = parse_cluster("v100=1,k80=1")
SPEEDS = {"nvidia/v100": 10.0, "nvidia/k80": 1.0}
EITHER = ["v100", "k80"]


def known_estimates(works, edges=()):
    names = [("dag", name) for name in works]
    return Estimates(
        dict.fromkeys(names, SPEEDS),
        {("dag", name): Interval(*[work] * 3) for name, work in works.items()},
        edges={("dag", before): tuple(("dag", name) for name in after) for before, after in dict(edges).items()},
    )


def asks(name, device="v100", **fields):
    request = {"is_ordered": False} if isinstance(device, list) else {}
    pending = a_pending(name, device, **fields)
    return replace(pending, request=pending.request.model_copy(update=request))


def order(policy, snapshot):
    return [decision.request_id for decision in policy.decide(snapshot, EPOCH).decisions]


def test_heft_serves_first_the_task_on_which_the_most_depends():
    pending = (asks("long"), asks("head", at_s=1), asks("short", at_s=2))
    known = known_estimates({"long": 30.0, "head": 10.0, "short": 20.0, "tail": 25.0}, {"head": ["tail"]})
    snapshot = Snapshot(1, CLUSTER, pending=pending, estimates=known)
    assert order(Heft(), snapshot) == ["head", "long", "short"]


def test_critical_path_serves_the_shortest_dag_and_in_it_the_longest_path():
    pending = (asks("long"), asks("first"), asks("short"), asks("side"))
    known = known_estimates(
        {"long": 90.0, "first": 10.0, "short": 5.0, "side": 40.0, "last": 30.0},
        {"first": ["last"], "short": ["last"], "side": ["end"]},
    )
    snapshot = Snapshot(1, CLUSTER, pending=pending, estimates=known)
    assert order(CriticalPath(), snapshot) == ["first", "short", "side", "long"]


def test_runs_of_one_dag_go_one_after_the_other():
    pending = tuple(
        asks(f"{run}.{task}", task_id=task, run_id=run) for run in ("10", "9") for task in ("short", "long")
    )
    known = known_estimates({"short": 1.0, "long": 5.0, "last": 1.0}, {"short": ["last"], "long": ["last"]})
    snapshot = Snapshot(1, CLUSTER, pending=pending, estimates=known)
    assert order(CriticalPath(), snapshot) == ["9.long", "9.short", "10.long", "10.short"]


@pytest.mark.parametrize("policy", [Heft, CriticalPath])
def test_an_urgent_request_goes_first(policy):
    pending = (asks("a"), asks("b", priority="urgent"))
    snapshot = Snapshot(1, CLUSTER, pending=pending, estimates=known_estimates({"a": 10.0, "b": 10.0}))
    assert order(policy(), snapshot) == ["b", "a"]


def waits_for_v100(remaining_steps, work):
    """The decision for a request if the fast device is held for so many more seconds."""
    worker = next(w for w in CLUSTER if any("v100" in d.model for d in w.devices))
    device = next(d for d in worker.devices if "v100" in d.model)
    known = known_estimates({"holder": 10.0 * (remaining_steps + 50), "new": work})
    lease = a_lease("holder", worker.id, 50, **{device.id: 1000})
    snapshot = Snapshot(1, CLUSTER, pending=(asks("new", EITHER),), estimates=known)
    return Heft().decide(leased(snapshot, (lease, asks("holder"))), EPOCH).decisions[0]


def test_a_request_waits_for_the_faster_device_only_where_it_ends_sooner_there():
    waits = waits_for_v100(remaining_steps=80.0, work=100.0)  # 80 + 10 s there, 100 s here
    assert isinstance(waits, Wait)
    assert (waits.reason.code, waits.reason.is_transient) == (ReasonCode.SOONER, True)
    assert "nvidia/v100, free in 80 s" in waits.reason.found
    goes = waits_for_v100(remaining_steps=95.0, work=100.0)
    assert isinstance(goes, Place)
    assert (goes.worker_id, goes.alternative) == (CLUSTER[1].id if "k80" in CLUSTER[1].id else CLUSTER[0].id, 1)


def test_later_requests_get_devices_that_the_first_does_not_want():
    works = {"first": 100.0, "second": 90.0}
    snapshot = Snapshot(
        1, CLUSTER, pending=(asks("first", EITHER), asks("second", EITHER)), estimates=known_estimates(works)
    )
    places = Heft().decide(snapshot, EPOCH).decisions
    assert [(decision.request_id, type(decision).__name__) for decision in places] == [
        ("first", "Place"),
        ("second", "Wait"),
    ]
    busy = asks("third", "k80")
    plan = Heft().decide(
        replace(snapshot, pending=(*snapshot.pending, busy), estimates=known_estimates({**works, "third": 1.0})), EPOCH
    )
    assert {place.request_id for place in plan.places} == {"first", "third"}


def test_without_estimates_a_request_is_placed_where_it_fits():
    snapshot = Snapshot(1, CLUSTER, pending=(asks("a", EITHER), asks("b", EITHER), asks("c", EITHER)))
    for policy in (Heft(), CriticalPath()):
        assert [type(decision).__name__ for decision in policy.decide(snapshot, EPOCH).decisions] == [
            "Place",
            "Place",
            "Wait",
        ]


def ended(workload, policy, knowledge):
    """Makespan and mean completion of DAG runs."""
    workers = parse_cluster("v100=4,p100=4,k80=4")
    record = Simulation(workload, workers, policy, "it", Options(knowledge=knowledge)).run()
    runs = {job.id: job.run for job in workload.jobs}
    begins = {job.run: job.arrival_s for job in workload.jobs}
    ends: dict[str, float] = {}
    for job in record.jobs:
        ends[runs[job.id]] = max(ends.get(runs[job.id], 0.0), job.finished_s)
    return max(ends.values()), statistics.mean(ends[run] - begins[run] for run in begins)


@pytest.mark.parametrize("knowledge", [Knowledge.ORACLE, Knowledge.LEARNED])
def test_many_dag_runs_are_over_sooner_than_first_come_first_served(knowledge):
    rng = random.Random(7)
    designs = [random_design(rng, f"dag{number}") for number in range(8)]
    workload = dag_runs(rng, designs, 60, poisson_arrivals(rng, 4.0))
    fifo = ended(workload, Fifo(), knowledge)
    assert ended(workload, Heft(), knowledge)[0] < 0.95 * fifo[0]
    assert ended(workload, CriticalPath(), knowledge)[1] < 0.8 * fifo[1]


def name(number):
    return "dag", f"t{number:02}"


def known(durations, edges, classes=None):
    classes = classes or {"x": 1.0}
    return Estimates(
        {name(n): classes for n in durations},
        {name(n): Interval(*[seconds] * 3) for n, seconds in durations.items()},
        edges={name(n): tuple(map(name, after)) for n, after in edges.items()},
    )


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_rank_is_the_longest_way_to_an_end(size, rng):
    durations = {n: rng.randint(1, 9) for n in range(size)}
    edges = {n: [m for m in range(n + 1, size) if rng.random() < 0.4] for n in range(size)}

    def longest(number):
        return durations[number] + max(map(longest, edges[number]), default=0)

    estimates, ranks = known(durations, edges), UpwardRanks()
    assert [ranks.rank_s(name(n), estimates) for n in range(size)] == [longest(n) for n in range(size)]


def test_the_mean_over_classes_counts():
    assert UpwardRanks().rank_s(name(0), known({0: 60}, {}, {"fast": 2.0, "slow": 0.5})) == (30 + 120) / 2


def test_an_unknown_duration_counts_as_the_median_of_the_known_ones():
    estimates = known({0: 10, 1: 30, 2: 500}, {7: [0, 8]})
    ranks = UpwardRanks()
    assert [ranks.rank_s(name(n), estimates) for n in (7, 8, 9)] == [60, 30, 30]
    assert ranks.rank_s(name(0), NO_ESTIMATES) == UNKNOWN_S


def test_a_cycle_has_the_same_ranks_in_any_order_of_questions():
    estimates = known({0: 1, 1: 2, 2: 4}, {0: [1], 1: [2, 1], 2: [0]})
    ranks_by_order = []
    for seed in range(4):
        order = random.Random(seed).sample(range(3), 3)
        ranks = UpwardRanks()
        ranks_by_order.append({n: ranks.rank_s(name(n), estimates) for n in order})
    assert ranks_by_order[1:] == ranks_by_order[:1] * 3
    assert ranks_by_order[0] == {0: 7, 1: 6, 2: 4}


def test_a_long_chain_needs_no_deep_stack():
    size = 20_000
    edges = {("dag", str(n)): (("dag", str(n + 1)),) for n in range(size)}
    assert UpwardRanks().rank_s(("dag", "0"), Estimates(edges=edges)) == (size + 1) * UNKNOWN_S
