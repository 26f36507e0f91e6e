"""Gavel's measured speeds: job type × number of devices × device model, on one host and on several."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.simulator.traces.folder import find_file
from hetero_airflow.simulator.traces.rows import MAX_NUMBER, MAX_TEXT, read_whole

CLASSES = ("v100", "p100", "k80")
MAX_BYTES = 64 * 2**20
"""The published file has 5 MB."""

_KEY = re.compile(r"\('(?P<kind>[^']+)', (?P<gpus>[0-9]{1,4})\)")

Table = Mapping[tuple[str, int], Mapping[str, float]]
"""(job type, devices) → model → steps a second."""


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


def _mapping(file: str, value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TraceError(
            f"{file}, {shorten(what)}",
            found=f"{shorten(value)} where a mapping should be",
            remedy="Fetch the file again",
            field=shorten(what),
        )
    return value
