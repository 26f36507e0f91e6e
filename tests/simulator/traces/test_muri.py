from __future__ import annotations

import csv
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from hetero_airflow.errors import TraceError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.muri import SLOWDOWN
from hetero_airflow.simulator.workload import Job
from tests.simulator.test_truth import restart_s

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
    with (public_traces / "muri" / "published_avg_jct_seconds.csv").open() as file:
        recorded = next(float(line[trace]) for line in csv.DictReader(file) if line[""] == row)

    assert mean_jct_s(load_trace(f"muri/{trace}", public_traces).jobs, key) == pytest.approx(recorded, rel=1e-6)


def mean_jct_s(jobs: tuple[Job, ...], key: Callable[[float, int], float]) -> float:
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
