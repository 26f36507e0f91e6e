"""Muri's traces: jobs of Philly with durations, scaled to a cluster of 64 GPUs.

Published with "Multi-Resource Interleaving for Deep Learning Training" (SIGCOMM 2022) at
https://github.com/Rivendile/Muri, Apache-2.0 licence. Columns of ``<name>.csv`` (or ``.csv.gz``), among
others: job_id, num_gpu, submit_time, iterations, model_name, batch_size, iteration_time. Times are milliseconds. In
``<name>_pr`` all jobs arrive at the start.

The recorded mean JCTs come from ``simulator/run_sim.py``. By its rules, SRTF and SRSF give the recorded values to the
last digit, with one pool of 64 devices and with 8 hosts of 8. The rules: an iteration takes 1.015 times its
``iteration_time``; at each arrival and each end, all jobs are sorted by their remaining work and placed again, and a
job that does not fit is skipped; each job that ran before and goes on pays `restart_s`, even if it did not move.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.cluster import simulated_worker
from hetero_airflow.simulator.traces.folder import find_file, trace_folder
from hetero_airflow.simulator.traces.rows import csv_rows, in_order, unique
from hetero_airflow.simulator.workload import Job, Workload

GPUS = 64
SLOWDOWN = 1.015
"""Factor of each iteration, for measuring in it (``itertime_overhead_list`` of the publisher's simulator)."""

_RESTART_S = {
    1: {"vgg16": 7, "vgg19": 7, "resnet18": 4, "shufflenet_v2_x1_0": 4, "bert": 10, "gpt2": 10, "a2c": 38, "dqn": 5},
    2: {"vgg16": 7, "vgg19": 7, "resnet18": 5, "shufflenet_v2_x1_0": 4, "bert": 10, "gpt2": 10, "a2c": 39, "dqn": 5},
    4: {"vgg16": 8, "vgg19": 8, "resnet18": 5, "shufflenet_v2_x1_0": 5, "bert": 10, "gpt2": 10, "a2c": 39, "dqn": 6},
    8: {"vgg16": 9, "vgg19": 9, "resnet18": 7, "shufflenet_v2_x1_0": 5, "bert": 10, "gpt2": 10, "a2c": 46, "dqn": 6},
    16: {"vgg16": 9, "vgg19": 10, "resnet18": 7, "shufflenet_v2_x1_0": 7, "bert": 10, "gpt2": 10, "a2c": 46, "dqn": 8},
    32: {"vgg16": 10, "vgg19": 10, "resnet18": 7, "shufflenet_v2_x1_0": 8, "bert": 10, "gpt2": 10, "a2c": 46, "dqn": 8},
}
"""GPUs → model → seconds that a start takes, as the publisher measured (``overhead_dict``)."""

_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "iteration_time")


def load(name: str, traces: Path | None) -> Workload:
    """The jobs of one trace, with work in seconds, and one worker with 64 GPUs.

    :raises TraceError: there is no such file, or it is wrong
    """
    folder = trace_folder(traces) / "muri"
    path = find_file(folder, name, (".csv.gz", ".csv"))
    worker = simulated_worker("gpus", {"nvidia/v100": GPUS})
    return Workload(name=f"muri/{name}", jobs=tuple(_jobs(path)), workers=(worker,))


def restart_s(job: Job) -> float:
    """Seconds that a start of a job takes; 10 for a model that was not measured.

    >>> restart_s(Job("0", 0.0, DeviceRequest.parse("gpu:8"), 1.0, task="a2c 64 x8"))
    46
    """
    gpus = job.request.alternatives[0].count if job.request else 0
    return _RESTART_S.get(gpus, {}).get(job.task.split(" ")[0], 10)


def _jobs(path: Path) -> Iterator[Job]:
    request = cache(lambda gpus: DeviceRequest.parse(f"gpu:{gpus}"))
    for row in in_order(unique(csv_rows(path, _COLUMNS), "job_id"), "submit_time"):
        gpus = row.integer("num_gpu", 1, GPUS)
        yield Job(
            id=row.text("job_id"),
            arrival_s=row.number("submit_time") / 1000,
            request=request(gpus),
            work=row.number("iterations", least=1) * row.number("iteration_time", least=1e-3) * SLOWDOWN / 1000,
            task=f"{row.text('model_name')} {row.text('batch_size')} x{gpus}",
            group="muri",
        )
