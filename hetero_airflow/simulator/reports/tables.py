"""Figures as rows of a table that compares policies, and as JSON.

The same seed gives the same bytes, unless the caller adds wall-clock timings to the JSON.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from hetero_airflow.simulator.reports.figures import DecisionTiming, DurationSpread, Figures

SCHEMA = 1
_DIGITS = 6
_HOUR_S = 3600.0
_NONE = "–"

_Value = Callable[[Figures], float | None]

_PARTS = ("mean", "p50", "p95", "p99")


_TIMES: tuple[tuple[str, _Value], ...] = (
    *((f"JCT {part}, h", lambda f, part=part: _part(f.all.jct_s, part)) for part in _PARTS),
    ("JCT mean, lower bound, h", lambda f: _in_hours(f.least_mean_jct_s)),
    *((f"wait {part}, h", lambda f, part=part: _part(f.all.wait_s, part)) for part in _PARTS),
    ("makespan, h", lambda f: _in_hours(f.makespan_s)),
    ("makespan, lower bound, h", lambda f: _in_hours(f.least_makespan_s)),
)
_SHARES: tuple[tuple[str, _Value], ...] = (
    ("busy utilisation, %", lambda f: f.busy_utilisation),
    ("goodput utilisation, %", lambda f: f.goodput_utilisation),
    ("overhead of the busy time, %", lambda f: f.overhead),
)
_COUNTS: tuple[tuple[str, Callable[[Figures], int]], ...] = (
    ("jobs", lambda f: f.all.jobs),
    ("finished", lambda f: f.all.finished),
    ("never started", lambda f: f.all.never_started),
    ("finished in the window", lambda f: f.finished_in_window),
    ("preemptions", lambda f: f.preemptions),
    ("migrations", lambda f: f.migrations),
)


def comparison(figures: Sequence[Figures]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of a table with a column for each policy; times have their ratio to the first policy's.

    A dash stands for a figure that does not exist, such as the makespan of jobs that have not all ended. The texts
    contain the policies' names: escape them before you show them.
    """
    rows = [[name, *_with_ratio([value(column) for column in figures])] for name, value in _TIMES]
    rows += [[name, *(_percent(value(column)) for column in figures)] for name, value in _SHARES]
    rows.append(["finished an hour", *_with_ratio([column.jobs_per_hour for column in figures])])
    rows += [[name, *(str(value(column)) for column in figures)] for name, value in _COUNTS]
    return ["figure", *(column.policy for column in figures)], rows


def group_rows(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of a table of one policy's groups."""
    headers = ["group", "jobs", "finished", "JCT mean, h", "JCT p95, h", "wait mean, h", "wait p95, h"]
    rows = [
        [
            name, str(group.jobs), str(group.finished),
            *(_hours(_part(spread, part)) for spread in (group.jct_s, group.wait_s) for part in ("mean", "p95")),
        ]
        for name, group in figures.groups.items()
    ]  # fmt: skip
    return headers, rows


def timing_rows(timings: Sequence[DecisionTiming]) -> list[list[str]]:
    """Rows for the same table with the time of the decisions; none if nothing was timed."""
    if not timings:
        return []
    spreads = [timing.cycle_s for timing in timings]
    return [
        ["decision p50, ms", *(_NONE if s is None else f"{s.p50 * 1000:.3f}" for s in spreads)],
        ["decision p99, ms", *(_NONE if s is None else f"{s.p99 * 1000:.3f}" for s in spreads)],
        ["decision slowest, ms", *(f"{timing.slowest_s * 1000:.3f}" for timing in timings)],
        ["placements a second of deciding", *(f"{timing.placements_per_s:.0f}" for timing in timings)],
    ]


def as_json(figures: Sequence[Figures], timings: Sequence[DecisionTiming] = ()) -> str:
    """A JSON object with the figures of each policy, and if given, its timing.

    Seconds, and shares from 0 to 1, with six digits after the point; null stands for a figure that does not exist.
    """
    policies = [_rounded(asdict(policy_figures)) for policy_figures in figures]
    for timing, policy in zip(timings, policies, strict=bool(timings)):
        policy["timing"] = _rounded(asdict(timing))
    return json.dumps({"schema": SCHEMA, "simulated": True, "policies": policies}, indent=1, sort_keys=True) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def _part(spread: DurationSpread | None, name: str) -> float | None:
    return _in_hours(None if spread is None else float(getattr(spread, name)))


def _in_hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / _HOUR_S


def _with_ratio(values: Sequence[float | None]) -> list[str]:
    first = values[0]
    texts = [_hours(first)]
    for value in values[1:]:
        ratio = "" if value is None or not first else f" (×{value / first:.3f})"
        texts.append(f"{_hours(value)}{ratio}")
    return texts


def _hours(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{value * 100:.2f}"
