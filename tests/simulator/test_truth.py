"""Muri's traces: they are read as they are written, and the simulator gives the results that were published."""

import csv
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from hetero_airflow.errors import TraceError
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.policy import Policy
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.muri import SLOWDOWN
from hetero_airflow.simulator.workload import Job, Workload
from tests.benchmarks.baselines import Srsf, Srtf

_RESTART_S = {
    1: {"vgg16": 7, "vgg19": 7, "resnet18": 4, "shufflenet_v2_x1_0": 4, "bert": 10, "gpt2": 10, "a2c": 38, "dqn": 5},
    2: {"vgg16": 7, "vgg19": 7, "resnet18": 5, "shufflenet_v2_x1_0": 4, "bert": 10, "gpt2": 10, "a2c": 39, "dqn": 5},
    4: {"vgg16": 8, "vgg19": 8, "resnet18": 5, "shufflenet_v2_x1_0": 5, "bert": 10, "gpt2": 10, "a2c": 39, "dqn": 6},
    8: {"vgg16": 9, "vgg19": 9, "resnet18": 7, "shufflenet_v2_x1_0": 5, "bert": 10, "gpt2": 10, "a2c": 46, "dqn": 6},
    16: {"vgg16": 9, "vgg19": 10, "resnet18": 7, "shufflenet_v2_x1_0": 7, "bert": 10, "gpt2": 10, "a2c": 46, "dqn": 8},
    32: {"vgg16": 10, "vgg19": 10, "resnet18": 7, "shufflenet_v2_x1_0": 8, "bert": 10, "gpt2": 10, "a2c": 46, "dqn": 8},
}
"""GPUs → model → seconds that a start takes, as the publisher measured (``overhead_dict``)."""

POLICIES = {"SRTF": Srtf, "SRSF": Srsf}


def restart_s(job: Job) -> float:
    """Seconds that a start of a job takes; 10 for a model that was not measured."""
    gpus = job.request.alternatives[0].count if job.request else 0
    return _RESTART_S.get(gpus, {}).get(job.task.split(" ")[0], 10)


class MuriWorld(Simulation):
    """A simulation by the rules of the publisher's simulator (``run_sim.py`` of Rivendile/Muri).

    Whenever a job arrives or ends, all other jobs stop and start again. The time of this start is added to their work,
    at most what they did since the last time. The oracle knows this work.
    """

    def __init__(self, workload: Workload, policy: Policy) -> None:
        self.works = {("muri", job.id): Interval(job.work, job.work, job.work) for job in workload.jobs}
        speeds = {task: {"nvidia/v100": 1.0} for task in self.works}
        options = Options(restart_s=fixed_restart_s(0), knowledge=Knowledge.ORACLE)
        super().__init__(workload, (), policy, "muri", options, estimates=Estimates(speeds, self.works))
        self.last_s = 0.0
        self.is_event = False

    def _arrive(self, run: JobRun) -> None:
        self.is_event = True
        super()._arrive(run)

    def _finish(self, run: JobRun) -> None:
        self.is_event = True
        super()._finish(run)

    def _decide(self) -> None:
        if self.is_event:
            for run in [run for run in self._runs.values() if run.is_running]:
                self._lose_progress(run, min(restart_s(run.job), self._now_s - max(self.last_s, run.since_s)))
            self.is_event, self.last_s = False, self._now_s
        super()._decide()

    def _lose_progress(self, run: JobRun, lost_s: float) -> None:
        if lost_s > 0:
            run.remaining += lost_s
            self.works["muri", run.job.id] = Interval(*(work + lost_s for work in self.works["muri", run.job.id]))
            run.interval_number += 1
            self._events.at(run.since_s + run.remaining, lambda: self._finish(run), run.still_in(run.interval_number))


def recorded_mean_jct_s(public_traces: Path, policy: str, trace: str) -> float:
    with (public_traces / "muri" / "published_avg_jct_seconds.csv").open() as file:
        return next(float(line[trace]) for line in csv.DictReader(file) if line[""] == policy)


def mean_jct_s(public_traces: Path, policy: str, trace: str) -> float:
    record = MuriWorld(load_trace(f"muri/{trace}", public_traces), POLICIES[policy](min_run_s=0)).run()
    times = [job.finished_s - job.submitted_s for job in record.jobs if job.finished_s is not None]
    assert len(times) == len(record.jobs)
    return sum(times) / len(times)


@pytest.mark.parametrize("policy", POLICIES)
def test_muri_comes_out_as_recorded(public_traces: Path, policy: str) -> None:
    recorded = recorded_mean_jct_s(public_traces, policy, "trace3")
    assert mean_jct_s(public_traces, policy, "trace3") == pytest.approx(recorded, rel=1e-6)


@pytest.mark.bench
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("trace", ["trace3_pr", "trace1", "trace1_pr", "trace2", "trace2_pr"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_other_traces_of_muri_come_out_as_recorded(public_traces: Path, policy: str, trace: str) -> None:
    recorded = recorded_mean_jct_s(public_traces, policy, trace)
    assert mean_jct_s(public_traces, policy, trace) == pytest.approx(recorded, rel=1e-3)


def test_a_restart_takes_what_was_measured() -> None:
    job = Job("0", 0.0, DeviceRequest.parse("gpu:8"), 1.0, task="a2c 64 x8")
    assert (restart_s(job), restart_s(replace(job, task="other 1 x8"))) == (46, 10)


HEADER = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,iteration_time\n"


def put(folder: Path, *lines: str) -> None:
    (folder / "muri").mkdir(exist_ok=True)
    (folder / "muri" / "t.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))


def test_times_are_milliseconds_and_the_cluster_is_one_pool_of_64(tmp_path: Path) -> None:
    put(tmp_path, "3,4,2500,1000,bert,4,2000")

    workload = load_trace("muri/t", tmp_path)

    assert workload.jobs == (
        Job("3", 2.5, DeviceRequest.parse("gpu:4"), work=1000 * 2000 * SLOWDOWN / 1000, task="bert 4 x4", group="muri"),
    )
    assert [sum(d.kind == "gpu" for d in worker.devices) for worker in workload.workers] == [64]


@pytest.mark.parametrize(
    ("line", "field"),
    [("1,65,0,1,bert,4,1", "num_gpu"), ("1,1,0,0,bert,4,1", "iterations"), ("1,1,0,1,bert,4,nan", "iteration_time")],
)
def test_a_line_that_cannot_be_right_is_refused(tmp_path: Path, line: str, field: str) -> None:
    put(tmp_path, line)

    with pytest.raises(TraceError) as caught:
        load_trace("muri/t", tmp_path)

    assert (caught.value.line, caught.value.field) == (2, field)


def test_lines_out_of_order_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "0,1,9,1,bert,4,1", "1,1,8,1,bert,4,1")

    with pytest.raises(TraceError, match="less than the 9 before it"):
        load_trace("muri/t", tmp_path)


@pytest.mark.parametrize("trace", ["trace3", "trace3_pr"])
@pytest.mark.parametrize(
    ("row", "key"),
    [("SRTF", lambda remaining_s, gpus: remaining_s), ("SRSF", lambda remaining_s, gpus: remaining_s * gpus)],
)
def test_the_recorded_mean_jct_follows_from_the_loaded_jobs(
    public_traces: Path, trace: str, row: str, key: Callable[[float, int], float]
) -> None:
    recorded = recorded_mean_jct_s(public_traces, row, trace)
    assert replayed_mean_jct_s(load_trace(f"muri/{trace}", public_traces).jobs, key) == pytest.approx(
        recorded, rel=1e-6
    )


def replayed_mean_jct_s(jobs: tuple[Job, ...], key: Callable[[float, int], float]) -> float:
    """By the rules of the publisher's simulator, see the loader."""
    gpus = [job.request.alternatives[0].count for job in jobs]
    now, total, coming, remaining_s, running = 0.0, 0.0, 0, dict[int, float](), list[int]()
    while coming < len(jobs) or remaining_s:
        ends = {index: now + remaining_s[index] for index in running}
        then = min(chain(ends.values(), (job.arrival_s for job in jobs[coming : coming + 1])))
        for index, end in ends.items():
            if end == then:
                total += then - jobs[index].arrival_s
                del remaining_s[index]
            else:
                remaining_s[index] -= max(0.0, then - now - restart_s(jobs[index]))
        while coming < len(jobs) and jobs[coming].arrival_s == then:
            remaining_s[coming] = jobs[coming].work
            coming += 1
        now, free, running = then, 64, []
        for index in sorted(remaining_s, key=lambda index: key(remaining_s[index], gpus[index])):
            if gpus[index] <= free:
                free -= gpus[index]
                running.append(index)
    return total / len(jobs)
