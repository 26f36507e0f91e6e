"""Gangs in the simulator: all or nothing, several hosts, and wait budgets in simulated time."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Options, fixed_restart_s
from hetero_airflow.simulator.record import JobOutcome, JobRecord
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Job, Workload


def simulate(*jobs: Job, cluster: str = "v100=2x2") -> dict[str, JobRecord]:
    record = Simulation(Workload("test", jobs), parse_cluster(cluster), Fifo(), "fifo").run()
    return {job.id: job for job in record.jobs}


def a_gang(topology: str | None = None, ranks: int = 2, **fields: float) -> Job:
    return Job("gang", 1.0, DeviceRequest.parse("gpu", topology=topology), 100.0, ranks=ranks, **fields)  # type: ignore[arg-type]


def hosts_of(job: JobRecord) -> set[str]:
    return {interval.worker_id for interval in job.intervals}


def test_a_gang_is_kept_together_where_it_can_be() -> None:
    gang = simulate(a_gang())["gang"]
    assert (gang.started_s, gang.finished_s, len(hosts_of(gang))) == (1.0, 101.0, 1)


def test_a_gang_uses_several_hosts_where_one_is_too_small() -> None:
    gang = simulate(a_gang(ranks=3))["gang"]
    assert (gang.started_s, gang.finished_s, len(hosts_of(gang))) == (1.0, 101.0, 2)


@pytest.mark.parametrize(
    ("topology", "start_s", "finish_s", "number"),
    [
        (None, 1.0, 101.0, 2),
        ("host@10s", 11.0, 111.0, 2),
        ("host@1h", 50.0, 150.0, 1),
        ("host", 50.0, 150.0, 1),
    ],
)
def test_a_budget_decides_between_waiting_and_spreading(
    topology: str | None, start_s: float, finish_s: float, number: int
) -> None:
    hosts = tuple(
        worker.model_copy(update={"labels": {"name": name}})
        for worker, name in zip(parse_cluster("v100=2x2"), "ab", strict=True)
    )
    jobs = (
        Job("early", 0.0, DeviceRequest.parse("gpu", labels={"name": "a"}), 50.0),
        Job("late", 0.0, DeviceRequest.parse("gpu", labels={"name": "b"}), 1000.0),
        a_gang(topology),
    )
    record = Simulation(Workload("test", jobs), hosts, Fifo(), "fifo").run()
    gang = next(job for job in record.jobs if job.id == "gang")
    assert (gang.started_s, gang.finished_s, len(hosts_of(gang))) == (start_s, finish_s, number)


def in_ranks(workload: Workload, topology: str | None) -> Workload:
    """The jobs of more than one device as gangs of ranks with one device each."""

    def split(job: Job) -> Job:
        count = job.request.alternatives[0].count
        devices = {f"{a.vendor}/{a.model}" for a in job.request.alternatives}
        return replace(job, request=DeviceRequest.parse(devices, topology=topology if count > 1 else None), ranks=count)

    return replace(workload, jobs=tuple(split(job) for job in workload.jobs))


@pytest.mark.parametrize("topology", [None, "host@10m", "host"])
def test_the_gangs_of_a_public_trace_run_whole(public_traces: Path, topology: str | None) -> None:
    trace = load_trace("gavel/m300_seed0", public_traces)
    workload = in_ranks(replace(trace, jobs=trace.jobs[:60]), topology)
    cluster = parse_cluster("v100=2x8,p100=2x8,k80=2x8")
    record = Simulation(workload, cluster, Fifo(), "fifo", Options(restart_s=fixed_restart_s(60.0))).run()
    assert {job.outcome for job in record.jobs} == {JobOutcome.FINISHED}
    for job in record.jobs:
        begins: defaultdict[float, float] = defaultdict(float)
        for interval in job.intervals:
            begins[interval.start_s] += interval.devices
        assert set(begins.values()) == {job.devices}
        assert topology != "host" or len(hosts_of(job)) == 1
