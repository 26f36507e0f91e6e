"""Muri's traces: jobs of Philly with durations, scaled to a cluster of 64 GPUs.

Published with "Multi-Resource Interleaving for Deep Learning Training" (SIGCOMM 2022) at
https://github.com/Rivendile/Muri, Apache-2.0 licence. Columns of ``<name>.csv`` (or ``.csv.gz``), among
others: job_id, num_gpu, submit_time, iterations, model_name, batch_size, iteration_time. Times are milliseconds. In
``<name>_pr`` all jobs arrive at the start.

The recorded mean JCTs come from ``simulator/run_sim.py``. By its rules, SRTF and SRSF give the recorded values to the
last digit, with one pool of 64 devices and with 8 hosts of 8. The rules: an iteration takes 1.015 times its
``iteration_time``; at each arrival and each end, all jobs are sorted by their remaining work and placed again, and a
job that does not fit is skipped; each job that ran before and goes on pays a restart, even if it did not move.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.cluster import simulated_worker
from hetero_airflow.simulator.traces.files import csv_rows, find_file, in_order, trace_folder, unique
from hetero_airflow.simulator.workload import Job, Workload

GPUS = 64
SLOWDOWN = 1.015
"""Factor of each iteration, for measuring in it (``itertime_overhead_list`` of the publisher's simulator)."""

_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "iteration_time")


def load(name: str, traces: Path | None) -> Workload:
    """The jobs of one trace, with work in seconds, and one worker with 64 GPUs.

    :raises TraceError: there is no such file, or it is wrong
    """
    folder = trace_folder(traces) / "muri"
    path = find_file(folder, name, (".csv.gz", ".csv"))
    worker = simulated_worker("gpus", {"nvidia/v100": GPUS})
    return Workload(name=f"muri/{name}", jobs=tuple(_jobs(path)), workers=(worker,))


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
