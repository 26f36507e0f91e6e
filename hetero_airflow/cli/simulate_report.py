"""What ``airflow hetero simulate`` prints: a table with a column for each policy, and the groups of the first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from hetero_airflow.cli.output import cell, table
from hetero_airflow.simulator.figures import Figures, Timing
from hetero_airflow.simulator.report import comparison, group_rows, timing_rows

_MOST_GROUPS = 20


def simulate_report(figures: Sequence[Figures], timings: Sequence[Timing]) -> Iterator[RenderableType]:
    """The figures of each policy beside each other, and how long their decisions took."""
    first = figures[0]
    devices = ", ".join(f"{number} × {name}" for name, number in first.devices.items())
    options = ", ".join(f"{name} {value}" for name, value in first.options.items())
    yield cell(f"Simulated: {first.workload} on {devices}", style="bold")
    yield cell(f"{first.all.jobs} jobs; {options}")
    headers, rows = comparison(figures)
    rows += timing_rows(timings)
    yield table(headers, ([cell(value) for value in row] for row in rows))
    if 1 < len(first.groups) <= _MOST_GROUPS:
        headers, rows = group_rows(first)
        yield cell("")
        yield cell(f"Groups under {first.policy}", style="bold")
        yield table(headers, ([cell(value) for value in row] for row in rows))
