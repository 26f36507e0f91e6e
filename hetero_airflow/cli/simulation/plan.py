"""``airflow hetero plan``: a DAG run that has not begun, as a table with a Gantt chart of bars. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.output import cell, table
from hetero_airflow.model.estimates import Interval
from hetero_airflow.simulator.rehearsal import NEVER_S, Rehearsal, RehearsedTask

WIDTH = 40
"""Characters of the chart."""


def plan_report(rehearsal: Rehearsal, dag_id: str, policy: str, source: str) -> Iterator[RenderableType]:
    """When each task would start and end, what it would wait for devices, and what would go wrong."""
    yield cell(f"{dag_id}, rehearsed with the policy {policy} on {source}", style="bold")
    end = rehearsal.end_s
    yield cell(
        f"{len(rehearsal.tasks)} tasks; {rehearsal.other_tasks} tasks of other runs wait or run already; "
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
        yield cell("* nothing is known of how long it takes; its duration is assumed (--assume)")
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
    """The usual time, and the range where it is one."""
    low, middle, high = (_time(time) for time in times)
    return middle if low == high else f"{middle} ({low} to {high})"


def _bar(task: RehearsedTask, end_s: float) -> str:
    """Dots while it waits for devices, blocks while it runs."""
    scale = WIDTH / end_s if 0 < end_s < NEVER_S else 0.0
    ready, start = round(min(task.ready_s.middle, end_s) * scale), round(min(task.start_s.middle, end_s) * scale)
    end = max(round(min(task.end_s.middle, end_s) * scale), start + 1)
    return (" " * ready + "·" * (start - ready) + "█" * (end - start))[: WIDTH + 1]
