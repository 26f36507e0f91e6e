"""``airflow hetero simulate``: policies on a trace, or on this installation's history, compared in a table."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.output import cell, clean, console, show, table
from hetero_airflow.cli.simulation.simulate_arguments import read_experiment
from hetero_airflow.cli.simulation.task_history import history_workload
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.simulator.experiment import run_experiment
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.reports.figures import DecisionTiming, Figures, measure, measure_timing
from hetero_airflow.simulator.reports.html_page import html_page
from hetero_airflow.simulator.reports.tables import as_json, comparison, group_rows, timing_rows

ProgressCallback = Callable[[int, int, float], None]
"""Takes the number of ended jobs, the number of all jobs, and the simulated seconds."""

_MAX_GROUPS = 20
_HOUR_S = 3600.0


@action
def simulate(args: Namespace) -> None:
    """Run each policy, then print or write the comparison."""
    configuration = read_configuration()
    experiment, window = read_experiment(
        args,
        configuration.policy,
        history=lambda days, classes: history_workload(database(), open_store(), days, datetime.now(UTC), classes),
        known=lambda: open_store().snapshot().workers,
    )
    experiment = replace(experiment, options=replace(experiment.options, shares=configuration.shares))
    with progress_bars() as progress:
        records = list(run_experiment(experiment, progress))
    figures = [measure(record, window) for record in records]
    timings = [measure_timing(record) for record in records] if args.timing else []
    if args.html:
        write_report(Path(args.html), records, figures)
    if args.json:
        console().out(as_json(figures, timings), end="")
    else:
        show(*simulate_report(figures, timings))


@contextmanager
def progress_bars() -> Iterator[Callable[[str], ProgressCallback]]:
    """A function that starts the progress bar of a policy; bars appear on standard error, and only on a terminal."""
    output = console(sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[hours]:.0f} h simulated"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=output, transient=True, disable=not output.is_terminal) as bars:

        def start(policy: str) -> ProgressCallback:
            bar = bars.add_task(clean(policy), total=None, hours=0.0)
            return lambda ended, total, now_s: bars.update(bar, completed=ended, total=total, hours=now_s / _HOUR_S)

        yield start


def write_report(path: Path, records: Sequence[SimulationRecord], figures: Sequence[Figures]) -> None:
    """Write a page with charts.

    :raises SettingsError: the file can't be written, or the chart library is not installed
    """
    page = html_page(records, figures)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--html {shorten(str(path))}", found=error.strerror or type(error).__name__, remedy="Name another file"
        ) from error


def simulate_report(figures: Sequence[Figures], timings: Sequence[DecisionTiming]) -> Iterator[RenderableType]:
    """The figures of each policy side by side, and the durations of their decisions. Pure."""
    first = figures[0]
    devices = ", ".join(f"{number} × {name}" for name, number in first.devices.items())
    options = ", ".join(f"{name} {value}" for name, value in first.options.items())
    yield cell(f"Simulated: {first.workload} on {devices}", style="bold")
    yield cell(f"{first.all.jobs} jobs; {options}")
    headers, rows = comparison(figures)
    rows += timing_rows(timings)
    yield table(headers, ([cell(value) for value in row] for row in rows))
    if 1 < len(first.groups) <= _MAX_GROUPS:
        headers, rows = group_rows(first)
        yield cell("")
        yield cell(f"Groups under {first.policy}", style="bold")
        yield table(headers, ([cell(value) for value in row] for row in rows))
