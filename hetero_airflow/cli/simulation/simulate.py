"""What ``airflow hetero simulate`` prints: a table with a column for each policy, and the groups of the first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from hetero_airflow.cli.output import cell, table
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.reports.figures import DecisionTiming, Figures
from hetero_airflow.simulator.reports.html_page import html_page
from hetero_airflow.simulator.reports.tables import comparison, group_rows, timing_rows

_MOST_GROUPS = 20


def write_report(path: Path, records: Sequence[SimulationRecord], figures: Sequence[Figures]) -> None:
    """Write the page with the charts.

    :raises SettingsError: the file can't be written, or what draws charts is not installed
    """
    page = html_page(records, figures)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--html {shorten(str(path))}", found=error.strerror or type(error).__name__, remedy="Name another file"
        ) from error


def simulate_report(figures: Sequence[Figures], timings: Sequence[DecisionTiming]) -> Iterator[RenderableType]:
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
