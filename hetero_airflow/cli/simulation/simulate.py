"""``airflow hetero simulate``: policies on a trace, or on this installation's history, compared in a table."""

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.output import cell, clean, console, show, table
from hetero_airflow.cli.simulation.task_history import history_workload
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.model.device import device_class
from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies import load_policy
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.reports.figures import DecisionTiming, Figures, MeasuredWindow, measure, measure_timing
from hetero_airflow.simulator.reports.html_page import html_page
from hetero_airflow.simulator.reports.tables import as_json, comparison, group_rows, timing_rows
from hetero_airflow.simulator.simulation import ProgressCallback, Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Workload
from hetero_airflow.units import parse_duration_s

LoadHistory = Callable[[float, Collection[str]], Workload]
"""(days, device classes) → the workload of those days, with its speeds on those classes."""

_MAX_DAYS = 36_500
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")
_MAX_GROUPS = 20
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """A workload, a cluster, and the policies to compare."""

    workload: Workload
    workers: tuple[Worker, ...]
    policies: tuple[str, ...]
    """Names of policies; the others are compared with the first."""
    options: Options


@action
def simulate(args: Namespace) -> None:
    """Run each policy, then print or write the comparison."""
    configuration = read_configuration()
    experiment, window = read_experiment(
        args,
        configuration.policy,
        history=lambda days, classes: history_workload(database(), open_store(), days, datetime.now(UTC), classes),
        read_workers=lambda: open_store().snapshot().workers,
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


def read_experiment(
    args: Namespace, policy: str, history: LoadHistory, read_workers: Callable[[], tuple[Worker, ...]]
) -> tuple[Experiment, MeasuredWindow]:
    """The experiment, and the window of jobs that its figures cover.

    :param policy: the configured policy, used if the arguments name none
    :param history: gives this installation's history, used if no trace is named
    :param read_workers: gives this installation's workers, used if neither the arguments nor the trace name a cluster
    :raises HeteroError: an argument that can't be read, or a trace that does not exist
    """
    trace = (
        None if args.trace is None else load_trace(args.trace, Path(args.traces) if args.traces is not None else None)
    )
    workers = parse_cluster(args.cluster) if args.cluster else (trace.workers if trace else ()) or read_workers()
    classes = {device_class(device) for worker in workers for device in worker.devices}
    workload = trace or history(_days(args.history), classes)
    if not workers:
        raise SettingsError(
            f"to simulate {shorten(workload.name)}",
            found="no cluster: neither the workload nor this installation has workers",
            remedy="Name one: --cluster v100=12,p100=3x4",
        )
    first, last = _jobs(args.jobs, len(workload.jobs))
    options = Options(
        restart_s=usual_restart_s if args.restart_cost is None else fixed_restart_s(_seconds(args, "restart_cost")),
        knowledge=Knowledge(args.knowledge),
        can_preempt=not args.no_preemption,
        cycle_s=_seconds(args, "cycle"),
        mean_uptime_s=_seconds(args, "uptime"),
        repair_s=_seconds(args, "repair"),
        checkpoint_s=_seconds(args, "checkpoint"),
        until_s=_seconds(args, "until"),
        measured=(first, last),
        seed=args.seed,
    )
    names = dict.fromkeys([args.policy or policy, *filter(None, (args.compare or "").split(","))])
    return Experiment(workload, workers, tuple(names), options), MeasuredWindow(first, last)


def run_experiment(experiment: Experiment, progress: Callable[[str], ProgressCallback]) -> Iterator[SimulationRecord]:
    """The record of each policy, in order, as soon as its simulation ends.

    :param progress: policy → function that is called with its progress
    :raises RegistryError: there is no such policy
    :raises ClusterError: a job that the cluster could never run
    """
    policies = [(name, load_policy(name)) for name in experiment.policies]  # an unknown name fails before the first run
    for name, policy in policies:
        simulation = Simulation(experiment.workload, experiment.workers, policy, name, experiment.options)
        yield simulation.run(progress(name))


def _days(days: float) -> float:
    if not 0 < days <= _MAX_DAYS:
        remedy = f"Use more than 0 and at most {_MAX_DAYS} days"
        raise SettingsError(f"--history {days:g}", found="a number out of range", remedy=remedy)
    return days


def _seconds(args: Namespace, name: str) -> float:
    """The duration of an option, at least 0; the default of `Options` if it was not given."""
    fields = {"cycle": "cycle_s", "uptime": "mean_uptime_s", "repair": "repair_s", "checkpoint": "checkpoint_s"}
    text = getattr(args, name)
    if text is None:
        return float(getattr(Options(), fields.get(name, "until_s")))
    duration: float | str = text
    with suppress(ValueError):  # a number without a unit is in seconds
        duration = float(text)
    return 0.0 if text in ("0", "0s") else parse_duration_s(duration, f"--{name.replace('_', '-')}")


def _jobs(text: str | None, total: int) -> tuple[int, int]:
    """The numbers of the first job and of the one after the last, read from a text such as ``4000..4999``."""
    if text is None:
        return 0, total
    match = _RANGE.fullmatch(text)
    if match is None or not int(match[1]) <= int(match[2]) < total:
        raise SettingsError(
            f"--jobs {shorten(text)}",
            found=f"no range within the {total} jobs",
            remedy=f"Write the first and the last job, such as 0..{total - 1}",
        )
    return int(match[1]), int(match[2]) + 1


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
    with Progress(*columns, console=output, transient=True, disable=not output.is_terminal) as progress:

        def start(policy: str) -> ProgressCallback:
            progress_task = progress.add_task(clean(policy), total=None, hours=0.0)
            return lambda ended, total, now_s: progress.update(
                progress_task, completed=ended, total=total, hours=now_s / _HOUR_S
            )

        yield start


def write_report(path: Path, records: Sequence[SimulationRecord], figures: Sequence[Figures]) -> None:
    """Write a page with charts.

    :raises SettingsError: the file can't be written, or the chart library is not installed
    """
    page = html_page(records, figures)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        found = error.strerror or type(error).__name__
        raise SettingsError(f"--html {shorten(str(path))}", found=found, remedy="Name another file") from error


def simulate_report(figures: Sequence[Figures], timings: Sequence[DecisionTiming]) -> Iterator[RenderableType]:
    """The figures of each policy side by side, and the durations of their decisions. Pure."""
    first = figures[0]
    devices = ", ".join(f"{number} × {name}" for name, number in first.devices.items()) or "CPU cores only"
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
