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

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeGuard

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


@dataclass(frozen=True, slots=True)
class Speeds:
    """The measured speeds, without those of jobs that share a device."""

    together: Table
    """Speeds with all devices on one host."""
    apart: Table = field(default_factory=dict)
    """Speeds with devices on several hosts."""

    def spread(self, kind: str, gpus: int) -> float:
        """The factor of a job's speed on several hosts, above 0 and at most 1; 1 if it was not measured.

        `Job.spread` is one number for all models, so this is the geometric mean over the models.

        >>> Speeds({("lm", 2): {"v100": 8.0, "k80": 4.0}}, {("lm", 2): {"v100": 2.0, "k80": 4.0}}).spread("lm", 2)
        0.5
        """
        near, far = self.together.get((kind, gpus), {}), self.apart.get((kind, gpus), {})
        ratios = [far[model] / near[model] for model in near if near[model] > 0 and far.get(model, 0.0) > 0]
        return min(1.0, math.prod(ratios) ** (1 / len(ratios))) if ratios else 1.0


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


def read_speeds(folder: Path) -> Speeds:
    """The speeds of ``simulation_throughputs.json``, plain or gzip, in the folder.

    :raises TraceError: there is no such file, or it is wrong
    """
    path = find_file(folder, "simulation_throughputs", (".json.gz", ".json"))
    try:
        content = json.loads(read_whole(path, MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise TraceError(path.name, found=f"no JSON ({shorten(str(error))})", remedy="Fetch the file again") from error
    return Speeds(_table(path.name, content, ""), _table(path.name, content, "_unconsolidated"))


def _table(file: str, content: object, suffix: str) -> Table:
    table: dict[tuple[str, int], dict[str, float]] = {}
    for model in CLASSES:
        for key, entry in _mapping(
            file, _mapping(file, content, "the file").get(f"{model}{suffix}", {}), model
        ).items():
            match = _KEY.fullmatch(key) if len(key) <= MAX_TEXT and key.isprintable() else None
            speed = _mapping(file, entry, key).get("null")
            if match is None or not _is_speed(speed):
                raise TraceError(
                    f"{file}, {model}{suffix}, {shorten(key)}",
                    found=shorten(speed) if match else "no key of a job type and a number of devices",
                    remedy='Write it as "(\'LM (batch size 5)\', 8)": {"null": steps a second}',
                    field=shorten(key),
                )
            table.setdefault((match["kind"], int(match["gpus"])), {})[model] = speed
    return table


def _is_speed(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def _mapping(file: str, value: object, item: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TraceError(
            f"{file}, {shorten(item)}",
            found=f"{shorten(value)} where a mapping should be",
            remedy="Fetch the file again",
            field=shorten(item),
        )
    return value
