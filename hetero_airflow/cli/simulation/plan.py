"""``airflow hetero plan``: a rehearsal of a DAG run, as a table with a Gantt chart."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.live_snapshot import live_snapshot
from hetero_airflow.cli.output import cell, show, show_json, table
from hetero_airflow.cli.simulation.dag_file import planned_tasks, read_dag
from hetero_airflow.cli.simulation.task_history import plain_durations
from hetero_airflow.errors import SettingsError, StoreError, shorten
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.model.estimates import Interval
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies import load_policy
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.rehearsal import Rehearsal, RehearsedTask, rehearse
from hetero_airflow.simulator.simulation import NEVER_S
from hetero_airflow.store.snapshot_file import SAVE_ONE, read_snapshot
from hetero_airflow.units import parse_duration_s

WIDTH = 40
"""Characters of the chart."""


@action
def plan(args: Namespace) -> None:
    """Rehearse a DAG run; exit code 1 if something would go wrong."""
    arguments = read_plan_arguments(args, read_configuration().policy, datetime.now(UTC), live_snapshot, database)
    rehearsal = arguments.rehearse()
    if args.json:
        show_json(plan_json(rehearsal, arguments.dag_id, arguments.policy))
    else:
        show(*plan_report(rehearsal, arguments.dag_id, arguments.policy, arguments.source))
    sys.exit(1 if rehearsal.problems else 0)


class PlanArguments(NamedTuple):
    """A rehearsal, and what its report names."""

    rehearse: partial[Rehearsal]
    dag_id: str
    policy: str
    source: str
    """The origin of the snapshot, as a text."""


def read_plan_arguments(
    args: Namespace, policy: str, now: datetime, live: Callable[[], Snapshot], database: Callable[[], Engine]
) -> PlanArguments:
    """Read the arguments, the DAG file and the snapshot.

    With a saved snapshot or a simulated cluster, a database is optional; without one, the durations of plain tasks are
    unknown.

    :param policy: the configured policy, used if the arguments name none
    :raises HeteroError: an argument that can't be read, or a DAG file without the requested DAG
    """
    dag = read_dag(Path(args.dag_file), args.dag_id)
    saved = _read_saved(args.snapshot, args.cluster, now)
    snapshot, taken_at, source = saved or (live(), now, "the workers as they are now")
    try:
        durations = plain_durations(database(), dag.dag_id)
    except StoreError:
        if saved is None:
            raise
        durations = {}
    at = taken_at if args.at is None else _read_time(args.at)
    limit_s = None if dag.dagrun_timeout is None else dag.dagrun_timeout.total_seconds()
    rehearsal = partial(
        rehearse,
        snapshot,
        tuple(planned_tasks(dag, at, _read_conf(args.conf), durations)),
        now=taken_at,
        starts_in_s=max((at - taken_at).total_seconds(), 0.0),
        assumed_s=parse_duration_s(args.assume, "--assume"),
        deadline_s=limit_s if args.deadline is None else parse_duration_s(args.deadline, "--deadline"),
        policy=load_policy(args.policy or policy),
    )
    return PlanArguments(rehearsal, dag.dag_id, args.policy or policy, source)


def _read_saved(snapshot: str | None, cluster: str | None, now: datetime) -> tuple[Snapshot, datetime, str] | None:
    """The snapshot that the arguments name, its time and its origin; None if the live one is asked for."""
    if snapshot is not None and cluster is not None:
        raise SettingsError(
            f"--cluster {shorten(cluster)}", found="--snapshot beside it", remedy="Give one of them: each has workers"
        )
    if cluster is not None:
        return Snapshot(0, parse_cluster(_cluster_text(cluster))), now, f"the simulated cluster {shorten(cluster)}"
    if snapshot is not None:
        saved, taken_at = read_snapshot(_read_file("--snapshot", snapshot, SAVE_ONE))
        return saved, taken_at, f"the snapshot of {taken_at:%Y-%m-%d %H:%M} UTC"
    return None


def _cluster_text(cluster: str) -> str:
    """The text that describes the cluster: the argument, or the lines of the file that it names."""
    if "=" in cluster and not Path(cluster).is_file():
        return cluster
    remedy = "Name a file with lines such as v100=12 and p100=3x4, or write --cluster v100=12,p100=3x4"
    lines = _read_file("--cluster", cluster, remedy).splitlines()
    return ",".join(line.split("#")[0] for line in lines)


def _read_file(option: str, name: str, remedy: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"{option} {shorten(name)}", found=type(error).__name__, remedy=remedy) from error


def _read_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"--at {shorten(text)}",
            found="a text that is not a time",
            remedy="Write it as 2026-01-31T18:00 (UTC) or 2026-01-31T18:00+02:00",
        ) from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _read_conf(text: str | None) -> Mapping[str, Any]:
    try:
        conf = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        conf = None
    if not isinstance(conf, dict):
        raise SettingsError(
            f"--conf {shorten(text)}",
            found="a text that is not a JSON object",
            remedy='Write it as \'{"model": "large"}\'',
        )
    return conf


def plan_report(rehearsal: Rehearsal, dag_id: str, policy: str, source: str) -> Iterator[RenderableType]:
    """When each task would wait, start and end, and what would go wrong. Pure."""
    yield cell(f"{dag_id}, rehearsed with the policy {policy} on {source}", style="bold")
    end = rehearsal.end_s
    yield cell(
        f"{len(rehearsal.tasks)} tasks; {rehearsal.other_tasks} tasks of other runs already wait or run; "
        f"ends after {_span(end)}"
    )
    rows = (
        (
            cell(task.id),
            cell(task.request or "–"),
            cell(task.worker_id or "–"),
            cell(_time(task.wait_s)),
            cell(_span(task.start_s)),
            cell(_span(task.end_s) + (" *" if task.is_assumed else "")),
            cell(_bar(task, end.middle)),
        )
        for task in rehearsal.tasks
    )
    yield table(("Task", "Asks for", "Worker", "Waits", "Starts after", "Ends after", "Usual course"), rows, whole=6)
    if any(task.is_assumed for task in rehearsal.tasks):
        yield cell("* its duration is unknown; the value of --assume is used")
    for note in rehearsal.notes:
        yield cell(f"NOTE {note.id}: {note.text}")
    for problem in rehearsal.problems:
        yield cell(f"MISS {problem.id}: {problem.text}", style="red")
    if not rehearsal.problems:
        yield cell("Nothing would go wrong")


def plan_json(rehearsal: Rehearsal, dag_id: str, policy: str) -> dict[str, Any]:
    """The same as JSON values; intervals are [short, usual, long] in seconds from the start of the run."""
    return {
        "dag_id": dag_id,
        "policy": policy,
        "standing": rehearsal.other_tasks,
        "end_s": list(rehearsal.end_s),
        "tasks": [
            {
                "id": task.id,
                "request": None if task.request is None else str(task.request),
                "worker": task.worker_id,
                "device_class": task.device_class,
                "wait_s": task.wait_s,
                "start_s": list(task.start_s),
                "end_s": list(task.end_s),
                "is_assumed": task.is_assumed,
            }
            for task in rehearsal.tasks
        ],
        "notes": [{"id": note.id, "text": note.text} for note in rehearsal.notes],
        "misses": [{"id": problem.id, "text": problem.text} for problem in rehearsal.problems],
    }


def _time(seconds: float) -> str:
    if seconds >= NEVER_S:
        return "never"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _span(times: Interval) -> str:
    """The usual time, and the range if it has one."""
    low, middle, high = (_time(time) for time in times)
    return middle if low == high else f"{middle} ({low} to {high})"


def _bar(task: RehearsedTask, end_s: float) -> str:
    """Dots while the task waits for devices, blocks while it runs."""
    scale = WIDTH / end_s if 0 < end_s < NEVER_S else 0.0
    ready, start = round(min(task.ready_s.middle, end_s) * scale), round(min(task.start_s.middle, end_s) * scale)
    end = max(round(min(task.end_s.middle, end_s) * scale), start + 1)
    return (" " * ready + "·" * (start - ready) + "█" * (end - start))[: WIDTH + 1]
