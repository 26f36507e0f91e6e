"""Bounds of the benchmarks: of mean JCT and makespan, and of the allocation."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.errors import ClusterError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster, simulated_worker
from hetero_airflow.simulator.reports.figures import measure
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Job, Workload
from tests.benchmarks.bounds import allocation, relaxed_bounds
from tests.benchmarks.bounds.allocation import allocation_bound
from tests.benchmarks.bounds.relaxed_bounds import JctBounds, makespan_bounds, mean_jct_bounds

GPU = DeviceRequest.parse("gpu")
V100, K80 = "nvidia/v100", "nvidia/k80"


def a_job(
    number: int, arrival_s: float, v100_s: float, k80_s: float = math.inf, gpus: int = 1, **fields: object
) -> Job:
    speeds = {V100: 1 / v100_s} | ({K80: 1 / k80_s} if math.isfinite(k80_s) else {})
    request = DeviceRequest.parse(f"gpu:{gpus}")
    return Job(str(number), arrival_s, request, work=1.0, speeds=speeds, **fields)  # type: ignore[arg-type]


def workload(*jobs: Job) -> Workload:
    return Workload("w", tuple(sorted(jobs, key=lambda job: job.arrival_s)))


def test_jobs_that_never_meet_are_bounded_by_their_own_time() -> None:
    jobs = workload(a_job(0, 0.0, 10.0, 30.0), a_job(1, 100.0, 20.0, 5.0))

    bounds = mean_jct_bounds(jobs, parse_cluster("v100=1,k80=1"))

    assert bounds.alone_s == 7.5
    assert bounds.best_s == pytest.approx(7.5)


def test_on_one_device_srpt_is_exact() -> None:
    # 0 runs 0 to 1, is overtaken by 1 (1 to 3), and ends at 12; 2 follows until 32.
    jobs = workload(a_job(0, 0.0, 10.0), a_job(1, 1.0, 2.0), a_job(2, 1.0, 20.0))

    bounds = mean_jct_bounds(jobs, parse_cluster("v100=1"))

    assert bounds.one_machine_s == pytest.approx((12 + 2 + 31) / 3)
    assert bounds.lp_s is not None
    assert bounds.lp_s <= bounds.one_machine_s + 1e-9


def test_the_program_knows_that_fast_devices_are_few() -> None:
    jobs = workload(*(a_job(number, 0.0, 10.0, 100.0) for number in range(4)))

    bounds = mean_jct_bounds(jobs, parse_cluster("v100=1,k80=8"))

    assert bounds.alone_s == 10.0
    assert bounds.lp_s is not None
    assert 15.0 < bounds.lp_s <= 25.0  # one after another: (10 + 20 + 30 + 40) / 4


@st.composite
def small(draw: st.DrawFn) -> tuple[Workload, tuple[Worker, ...]]:
    times = st.floats(1.0, 50.0)
    jobs = [
        a_job(number, draw(st.floats(0.0, 30.0)), draw(times), draw(times | st.just(math.inf)))
        for number in range(draw(st.integers(1, 4)))
    ]
    return workload(*jobs), parse_cluster(draw(st.sampled_from(["v100=1", "v100=1,k80=1", "v100=2,k80=1"])))


def schedules(jobs: tuple[Job, ...], workers: tuple[Worker, ...]) -> list[list[float]]:
    """The ends of the jobs in every schedule that starts them in some order and never stops one."""
    devices = [f"nvidia/{d.model}" for worker in workers for d in worker.devices if d.kind != "cpu"]
    schedules_s = []
    for order in itertools.permutations(range(len(jobs))):
        for places in itertools.product(range(len(devices)), repeat=len(jobs)):
            if all(jobs[job].speed(devices[place]) for job, place in zip(order, places, strict=True)):
                free, ends = [0.0] * len(devices), [0.0] * len(jobs)
                for job, place in zip(order, places, strict=True):
                    begin = max(free[place], jobs[job].arrival_s)
                    free[place] = ends[job] = begin + 1 / jobs[job].speed(devices[place])
                schedules_s.append(ends)
    return schedules_s


@settings(max_examples=60, deadline=None)
@given(small())
def test_no_schedule_is_better_than_a_bound(case: tuple[Workload, tuple[Worker, ...]]) -> None:
    jobs, workers = case
    bounds, makespan = mean_jct_bounds(jobs, workers), makespan_bounds(jobs, workers)

    all_ends = schedules(jobs.jobs, workers)
    least = min(sum(e - job.arrival_s for e, job in zip(ends, jobs.jobs, strict=True)) for ends in all_ends)
    assert bounds.best_s <= least / len(jobs.jobs) * (1 + 1e-6)
    assert makespan.best_s <= min(max(ends) for ends in all_ends) * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 500), st.floats(1, 300), st.floats(1, 300), st.integers(1, 4)), min_size=1, max_size=25
    )
)
def test_the_simulator_is_never_better_than_a_bound(jobs: list[tuple[float, float, float, int]]) -> None:
    work = workload(*(a_job(number, *times) for number, times in enumerate(jobs)))
    workers = parse_cluster("v100=4,k80=4")

    figures = measure(Simulation(work, workers, Fifo(), "fifo").run())

    assert figures.all.jct_s is not None
    assert mean_jct_bounds(work, workers).best_s <= figures.all.jct_s.mean * (1 + 1e-6)


def test_part_of_the_jobs_is_bounded_as_if_the_others_were_not_there() -> None:
    jobs = workload(*(a_job(number, float(number), 10.0) for number in range(6)))

    assert mean_jct_bounds(jobs, parse_cluster("v100=1"), 5, 6).best_s == pytest.approx(10.0)


def test_jobs_that_wait_for_others_are_bounded_along_the_chain() -> None:
    chain = workload(a_job(0, 5.0, 10.0), a_job(1, 5.0, 20.0, after=("0",)), a_job(2, 5.0, 1.0))

    assert mean_jct_bounds(chain, parse_cluster("v100=9")) == JctBounds(pytest.approx(31 / 3), None, None)
    assert makespan_bounds(chain, parse_cluster("v100=9")).alone_s == 35.0


def test_jobs_without_accelerators_take_their_time_beside() -> None:
    cores = Job("c", 0.0, DeviceRequest.parse("cpu:4"), 30.0)

    assert mean_jct_bounds(workload(cores), parse_cluster("v100=1")).best_s == 30.0
    both = mean_jct_bounds(workload(cores, a_job(0, 0.0, 10.0)), parse_cluster("v100=1"))
    assert both.alone_s == 20.0
    assert both.one_machine_s == pytest.approx(20.0)


def test_many_jobs_get_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxed_bounds, "MAX_LP_JOBS", 1)
    jobs = workload(a_job(0, 0.0, 10.0), a_job(1, 0.0, 10.0))

    assert mean_jct_bounds(jobs, parse_cluster("v100=1")).lp_s is None
    assert mean_jct_bounds(jobs, parse_cluster("v100=1")).best_s == 15.0


def test_no_jobs_take_no_time() -> None:
    assert mean_jct_bounds(workload(), parse_cluster("v100=1")).best_s == 0.0
    assert makespan_bounds(workload(), parse_cluster("v100=1")).best_s == 0.0


def test_a_job_without_its_device_is_refused() -> None:
    with pytest.raises(ClusterError, match="nvidia/v100"):
        mean_jct_bounds(workload(a_job(7, 0.0, 10.0)), parse_cluster("k80=1"))


def test_the_published_stream_is_bounded_below_what_fifo_reaches(public_traces: Path) -> None:
    work, workers = load_trace("gavel/h300_seed0", public_traces), parse_cluster("v100=12,p100=12,k80=12")

    bounds = mean_jct_bounds(work, workers)
    figures = measure(Simulation(work, workers, Fifo(), "fifo").run())

    assert figures.all.jct_s is not None
    assert bounds.lp_s is not None
    assert bounds.alone_s < bounds.lp_s < figures.all.jct_s.mean
    assert figures.makespan_s is not None
    assert makespan_bounds(work, workers).best_s <= figures.makespan_s


def asking(*requests: DeviceRequest) -> Workload:
    return Workload("w", tuple(Job(str(number), 0.0, request, 1.0) for number, request in enumerate(requests)))


def gpu(text: str = "gpu", **quota: object) -> DeviceRequest:
    return DeviceRequest.parse(text, quota=quota)


def a_worker(id: str = "a", model: str = "t4", gpus: int = 2, cores: int = 10) -> Worker:
    return simulated_worker(id, {f"nvidia/{model}": gpus}, cores=cores, host_memory_bytes=2**30)


@pytest.mark.parametrize(
    ("requests", "bound"),
    [
        ([gpu("gpu:2")], 1.0),
        ([gpu()], 0.5),
        ([gpu("gpu:3")], 0.0),
        ([gpu("gpu:0.6")] * 4, 0.6),  # two of them never share a device
        ([gpu("gpu:0.6"), gpu("gpu:0.4"), gpu("gpu:0.7"), gpu("gpu:0.2")], 0.95),
        ([gpu("v100")] * 2, 0.0),
        ([gpu(cpus=10)] * 2, 0.5),
        ([gpu(cpus=6)] * 2, 5 / 6),  # 10 of 12 cores, since a job may be cut
        ([gpu(host_memory="2GiB")], 0.0),
        ([DeviceRequest.parse("cpu:10")], 0.0),
        ([], 0.0),
    ],
)
def test_small_cases_worked_out_by_hand(requests: list[DeviceRequest], bound: float) -> None:
    assert allocation_bound(asking(*requests), [a_worker()]) == pytest.approx(bound)


def test_models_are_kept_apart() -> None:
    requests = [DeviceRequest.parse({"nvidia/v100"})] * 4 + [DeviceRequest.parse({"nvidia/v100", "nvidia/t4"})]

    assert allocation_bound(asking(*requests), [a_worker(), a_worker("b", "v100")]) == pytest.approx(3 / 4)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=14),
    st.lists(st.integers(1, 2), max_size=4),
)
def test_first_fit_never_fills_more_than_the_bound(shares: list[tuple[int, int]], whole: list[int]) -> None:
    requests = [gpu(f"gpu:0.{share}", cpus=cores or None) for share, cores in shares]
    requests += [gpu(f"gpu:{count}") for count in whole]
    workers = [a_worker("a"), a_worker("b", cores=7)]
    free, cores_left = {"a": [10, 10], "b": [10, 10]}, {"a": 10, "b": 7}
    filled = 0
    for share, cores in shares:
        for worker, devices in free.items():
            chosen = next((index for index, free in enumerate(devices) if free >= share), None)
            if chosen is not None and cores_left[worker] >= cores:
                devices[chosen] -= share
                cores_left[worker] -= cores
                filled += share
                break
    for count in whole:
        for devices in free.values():
            empty = [index for index, free in enumerate(devices) if free == 10]
            if len(empty) >= count:
                for index in empty[:count]:
                    devices[index] = 0
                filled += 10 * count
                break

    assert filled / 40 <= allocation_bound(asking(*requests), workers) + 1e-9


def test_a_device_is_filled_with_larger_shares_first() -> None:
    assert allocation._arcs({600, 300}) == [(0, 300), (0, 600), (300, 300), (600, 300)]
