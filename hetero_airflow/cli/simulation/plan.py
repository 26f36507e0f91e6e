"""``airflow hetero plan``: a rehearsal of a DAG run, as a table with a Gantt chart."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.live_snapshot import live_snapshot
from hetero_airflow.cli.output import cell, show, show_json, table
from hetero_airflow.cli.simulation.plan_arguments import read_plan_arguments
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.model.estimates import Interval
from hetero_airflow.simulator.rehearsal import NEVER_S, Rehearsal, RehearsedTask

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
