"""The simulator gives the results that the publishers of policies recorded on their traces."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.srsf import Srsf
from hetero_airflow.policies.srtf import Srtf
from hetero_airflow.simulator.job_run import JobRun
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Job, Workload

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
