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

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.model.devices.names import MAX_COUNT
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.traces.files import (
    MAX_NUMBER,
    MAX_TEXT,
    Row,
    csv_rows,
    find_file,
    in_order,
    read_whole,
    tab_rows,
    trace_folder,
    unique,
)
from hetero_airflow.simulator.workload import Job, Workload
from hetero_airflow.validation import first_problem

CLASSES = ("v100", "p100", "k80")
MAX_BYTES = 64 * 2**20
"""The published file has 5 MB."""

_KEY = re.compile(r"\('(?P<kind>[^']+)', (?P<gpus>[0-9]{1,4})\)")

Table = Mapping[tuple[str, int], Mapping[str, float]]
"""(job type, devices) → model → steps a second."""

_CSV = ("job_id", "arrival_s", "job_type", "gpus", "total_steps", *(f"thr_{model}" for model in CLASSES))
_TRACE = (
    "job_type", "command", "working_directory", "steps_argument", "needs_data", "total_steps", "scale_factor",
    "priority_weight", "slo", "arrival_s",
)  # fmt: skip


class _Measurement(BaseModel):
    """The speeds of a job type; those beside another job are ignored."""

    null: Annotated[float, Field(strict=True, ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
    """Alone on its devices."""


class _SpeedFile(BaseModel):
    v100: dict[str, _Measurement] = {}
    p100: dict[str, _Measurement] = {}
    k80: dict[str, _Measurement] = {}


def load(name: str, traces: Path | None) -> Workload:
    """The jobs of one stream; the file names no cluster.

    :raises TraceError: there is no such file, or it is wrong
    """
    folder = trace_folder(traces) / "gavel"
    path = find_file(folder, name, (".csv.gz", ".csv", ".trace"))
    request = cache(request_for)
    is_trace = path.suffix == ".trace"
    jobs = _from_trace(path, read_speeds(folder), request) if is_trace else _from_csv(path, request)
    return Workload(name=f"gavel/{name}", jobs=tuple(jobs))


def request_for(models: tuple[str, ...], gpus: int) -> DeviceRequest:
    """A request for that many devices of one of the models; the policy chooses the model.

    >>> str(request_for(("v100", "k80"), 4))
    '4 × nvidia/k80 | 4 × nvidia/v100'
    """
    return DeviceRequest.parse({f"{model}:{gpus}" for model in models})


def _from_csv(path: Path, request: Callable[..., DeviceRequest]) -> Iterator[Job]:
    for row in in_order(unique(csv_rows(path, _CSV), "job_id"), "arrival_s"):
        kind, gpus = row.text("job_type"), row.integer("gpus", 1, MAX_COUNT)
        rates = {model: row.number(f"thr_{model}") for model in CLASSES}
        yield _job(row, row.text("job_id"), kind, gpus, rates, request)


def _from_trace(path: Path, speeds: Table, request: Callable[..., DeviceRequest]) -> Iterator[Job]:
    for row in in_order(tab_rows(path, _TRACE), "arrival_s"):
        kind, gpus = row.text("job_type"), row.integer("scale_factor", 1, MAX_COUNT)
        rates = speeds.get((kind, gpus))
        if rates is None:
            raise row.wrong(
                "job_type", f"no speeds on {gpus} devices in simulation_throughputs.json",
                "Name a job type of that file, or add its speeds there",
            )  # fmt: skip
        yield _job(row, str(row.line - 1), kind, gpus, rates, request)


def _job(
    row: Row, id: str, kind: str, gpus: int, rates: Mapping[str, float],
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
    )


def read_speeds(folder: Path) -> Table:
    """The speeds of ``simulation_throughputs.json``, plain or gzip, in the folder, with all devices on one host.

    :raises TraceError: there is no such file, or it is wrong
    """
    path = find_file(folder, "simulation_throughputs", (".json.gz", ".json"))
    try:
        file = _SpeedFile.model_validate_json(read_whole(path, MAX_BYTES))
    except ValidationError as error:
        place, problem = first_problem(error)
        raise TraceError(f"{path.name}, {shorten(place)}", found=problem, remedy="Fetch the file again") from error
    table: dict[tuple[str, int], dict[str, float]] = {}
    for model in CLASSES:
        for key, entry in getattr(file, model).items():
            match = _KEY.fullmatch(key) if len(key) <= MAX_TEXT and key.isprintable() else None
            if match is None:
                raise TraceError(
                    f"{path.name}, {model}, {shorten(key)}",
                    found="no key of a job type and a number of devices",
                    remedy='Write it as "(\'LM (batch size 5)\', 8)": {"null": steps a second}',
                    field=shorten(key),
                )
            table.setdefault((match["kind"], int(match["gpus"])), {})[model] = entry.null
    return table
