"""The forecast for a request as text and as JSON. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.cli.output import age, moment
from hetero_airflow.executor.explanation.forecast import Forecast
from hetero_airflow.executor.explanation.request_text import request_text
from hetero_airflow.model.estimates import TaskName
from hetero_airflow.scheduling.advice.start_estimate import StartEstimate
from hetero_airflow.scheduling.advice.what_if import CheapestChange

_MAX_NAMES = 3
"""How many tasks of unknown duration are named."""


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
