"""Gavel's job streams: deep-learning jobs with their measured speeds on V100, P100 and K80.

Published with "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI 2020)
at https://github.com/stanford-futuredata/gavel, MIT licence. Two forms are read:

``<name>.csv`` or ``.csv.gz``
    job_id, arrival_s, job_type, gpus, total_steps, and thr_v100, thr_p100, thr_k80: steps a second of
    the whole job on that many devices of one worker, 0 if it can't run there. Sorted by arrival.
``<name>.trace``
    Ten columns separated by tabs, without a header, as in the publisher's ``scheduler/traces``. The speeds
    come from ``simulation_throughputs.json`` (plain or ``.gz``) in the same folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from hetero_airflow.model.request import MAX_COUNT, DeviceRequest
from hetero_airflow.simulator.traces.folder import find_file, trace_folder
from hetero_airflow.simulator.traces.gavel_speeds import CLASSES, Speeds, read_speeds
from hetero_airflow.simulator.traces.rows import Row, csv_rows, in_order, tab_rows, unique
from hetero_airflow.simulator.workload import Job, Workload

_CSV = ("job_id", "arrival_s", "job_type", "gpus", "total_steps", *(f"thr_{model}" for model in CLASSES))
_TRACE = (
    "job_type", "command", "working_directory", "steps_argument", "needs_data", "total_steps", "scale_factor",
    "priority_weight", "slo", "arrival_s",
)  # fmt: skip


def load(name: str, traces: Path | None) -> Workload:
    """The jobs of one stream; the file names no cluster.

    :raises TraceError: there is no such file, or it is wrong
    """
    folder = trace_folder(traces) / "gavel"
    path = find_file(folder, name, (".csv.gz", ".csv", ".trace"))
    speeds = cache(lambda: read_speeds(folder))
    request = cache(request_for)
    jobs = _from_trace(path, speeds(), request) if path.suffix == ".trace" else _from_csv(path, speeds, request)
    return Workload(name=f"gavel/{name}", jobs=tuple(jobs))


def request_for(models: tuple[str, ...], gpus: int) -> DeviceRequest:
    """A request for that many devices of one of the models; the policy chooses the model.

    >>> str(request_for(("v100", "k80"), 4))
    '4 × nvidia/k80 | 4 × nvidia/v100'
    """
    return DeviceRequest.parse({f"{model}:{gpus}" for model in models})


def _from_csv(path: Path, speeds: Callable[[], Speeds], request: Callable[..., DeviceRequest]) -> Iterator[Job]:
    for row in in_order(unique(csv_rows(path, _CSV), "job_id"), "arrival_s"):
        kind, gpus = row.text("job_type"), row.integer("gpus", 1, MAX_COUNT)
        rates = {model: row.number(f"thr_{model}") for model in CLASSES}
        spread = speeds().spread(kind, gpus) if gpus > 1 else 1.0
        yield _job(row, row.text("job_id"), kind, gpus, rates, spread, request)


def _from_trace(path: Path, speeds: Speeds, request: Callable[..., DeviceRequest]) -> Iterator[Job]:
    for row in in_order(tab_rows(path, _TRACE), "arrival_s"):
        kind, gpus = row.text("job_type"), row.integer("scale_factor", 1, MAX_COUNT)
        rates = speeds.together.get((kind, gpus))
        if rates is None:
            raise row.wrong(
                "job_type", f"no speeds on {gpus} devices in simulation_throughputs.json",
                "Name a job type of that file, or add its speeds there",
            )  # fmt: skip
        yield _job(row, str(row.line - 1), kind, gpus, rates, speeds.spread(kind, gpus), request)


def _job(
    row: Row, id: str, kind: str, gpus: int, rates: Mapping[str, float], spread: float,
    request: Callable[..., DeviceRequest],
) -> Job:  # fmt: skip
    models = tuple(model for model in CLASSES if rates.get(model, 0.0) > 0)
    if not models:
        field = f"thr_{CLASSES[0]}" if f"thr_{CLASSES[0]}" in row.fields else "job_type"
        raise row.wrong(field, "no speed above 0 on any device", "Give the speed on at least one")
    return Job(
        id=id,
        arrival_s=row.number("arrival_s"),
        request=request(models, gpus),
        work=row.number("total_steps", least=1e-9),
        speeds={f"nvidia/{model}": rates[model] for model in models},
        task=f"{kind} x{gpus}",
        group="gavel",
        spread=spread,
    )
