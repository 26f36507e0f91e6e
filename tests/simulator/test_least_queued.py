from dataclasses import replace

import pytest

from hetero_airflow.errors import ClusterError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from tests.benchmarks.baselines import LoadBalance
from tests.benchmarks.least_queued import least_queued

CLUSTER = parse_cluster("v100=1,k80=1")
SPEEDS = {"nvidia/v100": 2.0, "nvidia/k80": 1.0}
ONE = Job("a", 0.0, DeviceRequest.parse({"v100", "k80"}), 100.0, SPEEDS)


def test_a_job_joins_the_shortest_queue_and_stays_there() -> None:
    jobs = (ONE, replace(ONE, id="b"), replace(ONE, id="c", arrival_s=10), replace(ONE, id="d", arrival_s=60))
    record = least_queued(Workload("four", jobs), CLUSTER)
    assert [(job.id, job.intervals[0].worker_id, job.started_s, job.finished_s) for job in record.jobs] == [
        ("a", "v100-0", 0.0, 50.0),
        ("b", "k80-0", 0.0, 100.0),
        ("c", "v100-0", 50.0, 100.0),
        ("d", "v100-0", 100.0, 150.0),
    ]


def test_a_tie_goes_to_the_worker_that_stands_first() -> None:
    jobs = tuple(Job(str(number), 0.0, DeviceRequest.parse("gpu"), 60.0) for number in range(3))
    record = least_queued(Workload("three", jobs), CLUSTER)
    assert [(job.intervals[0].worker_id, job.finished_s) for job in record.jobs] == [
        ("v100-0", 60.0),
        ("k80-0", 60.0),
        ("v100-0", 120.0),
    ]


def test_a_job_joins_a_queue_only_if_it_can_run_there() -> None:
    slow = replace(ONE, speeds={"nvidia/k80": 1.0})
    record = least_queued(Workload("two", (slow, replace(slow, id="b"))), CLUSTER)
    assert [job.finished_s for job in record.jobs] == [100.0, 200.0]


@pytest.mark.parametrize("changed", [{"ranks": 2}, {"request": DeviceRequest.parse("v100:2")}, {"speeds": {}}])
def test_other_jobs_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ClusterError, match=r"[Jj]ob a"):
        least_queued(Workload("one", (replace(ONE, **changed),)), CLUSTER)  # type: ignore[arg-type]


def test_balancing_with_migration_completes_more_at_any_time() -> None:
    jobs = tuple(replace(ONE, id=f"{n:02}", arrival_s=20.0 * n, work=50.0 * (1 + n % 5)) for n in range(40))
    workload = Workload("forty", jobs)
    options = Options(restart_s=lambda devices: 1.0, knowledge=Knowledge.ORACLE)
    balanced = Simulation(workload, CLUSTER, LoadBalance(), "load_balance", options).run()
    ends = [
        sorted(job.finished_s or 0.0 for job in record.jobs) for record in (balanced, least_queued(workload, CLUSTER))
    ]
    assert sum(ends[0]) < sum(ends[1])
    assert sum(ours <= theirs for ours, theirs in zip(*ends, strict=True)) > 36
