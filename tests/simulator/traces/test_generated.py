from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hetero_airflow.errors import TraceError
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.files import VARIABLE


@pytest.mark.parametrize("stream", ["philly", "bursty"])
def test_a_stream_has_its_jobs_in_the_order_of_arrival(stream: str) -> None:
    workload = load_trace(f"generated/{stream}_rate20_jobs100_seed3")

    arrivals = [job.arrival_s for job in workload.jobs]
    assert (len(arrivals), arrivals) == (100, sorted(arrivals))
    assert workload.name == f"generated/{stream}_rate20_jobs100_seed3"


def test_dags_are_counted_by_runs() -> None:
    jobs = load_trace("generated/dags_rate2_jobs10_seed3").jobs

    assert {job.id.partition(".")[0] for job in jobs} == {str(run) for run in range(10)}
    assert any(job.after for job in jobs)


def test_another_rate_does_not_change_the_jobs() -> None:
    slow, fast = (load_trace(f"generated/philly_rate{rate}_jobs50_seed3").jobs for rate in (1, 2))

    assert [(job.work, job.task, job.group) for job in slow] == [(job.work, job.task, job.group) for job in fast]
    assert [job.arrival_s for job in slow] == pytest.approx([2 * job.arrival_s for job in fast])


def test_another_process_makes_the_same_bytes() -> None:
    name = "generated/dags_rate2_jobs5_seed3"
    program = f"from hetero_airflow.simulator.traces import load_trace\nprint(repr(load_trace({name!r})))"
    made = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]

    assert made[0].stdout == made[1].stdout
    assert made[0].stdout.decode().strip() == repr(load_trace(name))


@pytest.mark.parametrize(
    "name",
    ["gavel", "gavel_rate0_jobs5_seed1", "gavel_rate1_jobs0_seed1", "gavel_rate-1_jobs5_seed1", "gavel_rate1_jobs5",
     "tiresias_rate1_jobs5_seed1", "gavel_rate9999999_jobs5_seed1", "philly_rate1_jobs200001_seed1"],
)  # fmt: skip
def test_a_name_out_of_bounds_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match=f"generated/'{name}'"):
        load_trace(f"generated/{name}")


def test_gavels_speeds_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(TraceError, match=f"Set {VARIABLE}"):
        load_trace("generated/gavel_rate1_jobs5_seed1")
    with pytest.raises(TraceError, match="simulation_throughputs"):
        load_trace("generated/gavel_rate1_jobs5_seed1", tmp_path)
