"""What ``airflow hetero explain`` forecasts: the start of a task, and a change that would start it now. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.cli.output import age, moment
from hetero_airflow.cli.requests.request_text import request_text
from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.scheduling.advice.start_estimate import Decide, StartEstimate, estimate_start
from hetero_airflow.scheduling.advice.what_if import CheapestChange, cheapest_change
from hetero_airflow.store.store import RequestHistory

_MAX_NAMES = 3
"""How many tasks of unknown duration are named."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for one request."""

    start: StartEstimate | None
    """None for a request that was refused."""
    change: CheapestChange | None
    """A change that would start it now. None if no single change does, or if it starts now without a change."""

    @property
    def starts_now(self) -> bool:
        """Whether the scheduler's next cycle starts it."""
        return self.start is not None and self.start.start_s is not None and self.start.start_s.high <= 0


def forecast_start(
    history: RequestHistory, snapshot: Snapshot, decide: Decide, now: datetime, period_s: float | None
) -> Forecast | None:
    """The forecast for a request that waits or was refused; None for any other, and for a paused one."""
    pending, newest = history.pending, history.decisions[0] if history.decisions else None
    if pending.is_paused:
        return None
    if any(request.id == pending.id for request in snapshot.pending):
        forecast = Forecast(estimate_start(snapshot, pending.id, decide, now, period_s), None)
    elif history.state == "ended" and newest is not None and newest["outcome"] == "refuse":
        forecast = Forecast(None, None)
    else:
        return None
    if forecast.starts_now:
        return forecast
    return replace(forecast, change=cheapest_change(snapshot, pending, decide, now))


def start_lines(estimate: StartEstimate, now: datetime) -> Iterator[str]:
    """When the task starts, for people."""
    if estimate.start_s is None:
        yield _unknown_start(estimate, now)
        return
    low, middle, high = (_span(seconds, now) for seconds in estimate.start_s)
    if estimate.start_s.high <= 0:
        yield "now: the scheduler's next cycle places it"
    elif low == high:
        yield f"in about {middle}, at {moment(now + timedelta(seconds=estimate.start_s.middle))}"
    else:
        yield f"in about {middle}; with a probability of 80 % in {low} to {high}"
    if estimate.unknown:
        yield f"or sooner: the durations of {_tasks(estimate.unknown)} are unknown"


def _unknown_start(estimate: StartEstimate, now: datetime) -> str:
    if estimate.beyond_s is not None:
        return f"not in less than {_span(estimate.beyond_s, now)}; the queue before it is too long for a forecast"
    if estimate.unknown:
        return f"unknown: it may wait for {_tasks(estimate.unknown)}, and their durations are unknown"
    return "unknown: it does not start even when all running tasks have ended"


def change_lines(cheapest: CheapestChange | None) -> Iterator[str]:
    """What would start it now, and on a line of its own the text to write in the DAG file."""
    if cheapest is None:
        yield "No single change of the request would start it now"
        return
    yield f"It would start now, on {cheapest.place.worker_id}, {cheapest.change.description}:"
    yield f"  {request_text(cheapest.change.request)}"


def forecast_json(forecast: Forecast | None) -> dict[str, Any]:
    """The forecast as JSON values, under ``outlook`` and ``what_if``; null if there is none."""
    start, cheapest = (None, None) if forecast is None else (forecast.start, forecast.change)
    return {
        "outlook": start
        and {
            "start_s": start.start_s and start.start_s._asdict(),
            "unknown": [{"dag_id": dag_id, "task_id": task_id} for dag_id, task_id in start.unknown],
            "beyond_s": start.beyond_s,
        },
        "what_if": cheapest
        and {
            "words": cheapest.change.description,
            "arguments": request_text(cheapest.change.request),
            "request": cheapest.change.request.model_dump(mode="json"),
            "cost": round(cheapest.change.cost, 6),
            "worker_id": cheapest.place.worker_id,
            "device_ids": [claim.device_id for claim in cheapest.place.claims],
        },
    }


def _span(seconds: float, now: datetime) -> str:
    return age(now, now + timedelta(seconds=round(seconds)))


def _tasks(names: tuple[TaskName, ...]) -> str:
    """The first names, and the number of the others.

    >>> _tasks((("dag", "a"), ("dag", "b"), ("dag", "c"), ("dag", "d")))
    'dag.a, dag.b, dag.c and 1 more'
    """
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(".".join(name) for name in names[:_MAX_NAMES]) + more
