"""What ``airflow hetero explain`` foresees of a task that waits: when it starts, and what would start it now. Pure."""

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

_NAMED = 3
"""Tasks named where nobody knows how long they run."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is foreseen of one request."""

    outlook: StartEstimate | None
    """None for a request that was refused."""
    answer: CheapestChange | None
    """None if no single change would start it now, or if it starts now as it is."""

    @property
    def starts_now(self) -> bool:
        """Whether the next round of the scheduler starts it."""
        return self.outlook is not None and self.outlook.start_s is not None and self.outlook.start_s.high <= 0


def forecast_start(
    request_history: RequestHistory, snapshot: Snapshot, decide: Decide, now: datetime, period_s: float | None
) -> Forecast | None:
    """What the policy will do with a request that waits or was refused, and what it would do with others; else None."""
    pending, newest = request_history.pending, request_history.decisions[0] if request_history.decisions else None
    if any(one.id == pending.id for one in snapshot.pending):
        seen = Forecast(estimate_start(snapshot, pending.id, decide, now, period_s), None)
    elif request_history.state == "ended" and newest is not None and newest["outcome"] == "refuse":
        seen = Forecast(None, None)
    else:
        return None
    return seen if seen.starts_now else replace(seen, answer=cheapest_change(snapshot, pending, decide, now))


def start_lines(seen: StartEstimate, now: datetime) -> Iterator[str]:
    """When it starts, as people say it."""
    if seen.start_s is None:
        if seen.beyond_s is not None:
            yield f"hardly in less than {_span(seen.beyond_s, now)}: so much stands before it that no more is foreseen"
        elif seen.unknown:
            yield f"not known: it may wait for {_tasks(seen.unknown)}, and it is not known how much longer that takes"
        else:
            yield "not known: no end of a task that runs will help"
        return
    low, middle, high = (_span(seconds, now) for seconds in seen.start_s)
    if seen.start_s.high <= 0:
        yield "now: the scheduler's next round places it"
    elif low == high:
        yield f"in about {middle}, at {moment(now + timedelta(seconds=seen.start_s.middle))}"
    else:
        yield f"in about {middle}, with four chances of five between {low} and {high}"
    if seen.unknown:
        yield f"or sooner: it is not known how long {_tasks(seen.unknown)} will take"


def answer_lines(answer: CheapestChange | None) -> Iterator[str]:
    """What would start it now, and the exact text to write in the DAG file for it, on a line of its own."""
    if answer is None:
        yield "No single change of the request would start it now"
        return
    yield f"It would start now, on {answer.place.worker_id}, {answer.change.description}:"
    yield f"  {request_text(answer.change.request)}"


def forecast_json(seen: Forecast | None) -> dict[str, Any]:
    """What is foreseen as JSON values, under ``outlook`` and ``what_if``; null where nothing is asked or found."""
    expected, answer = (None, None) if seen is None else (seen.outlook, seen.answer)
    return {
        "outlook": expected
        and {
            "start_s": expected.start_s and expected.start_s._asdict(),
            "unknown": [{"dag_id": dag_id, "task_id": task_id} for dag_id, task_id in expected.unknown],
            "beyond_s": expected.beyond_s,
        },
        "what_if": answer
        and {
            "words": answer.change.description,
            "arguments": request_text(answer.change.request),
            "request": answer.change.request.model_dump(mode="json"),
            "cost": round(answer.change.cost, 6),
            "worker_id": answer.place.worker_id,
            "device_ids": [claim.device_id for claim in answer.place.claims],
        },
    }


def _span(seconds: float, now: datetime) -> str:
    return age(now, now + timedelta(seconds=round(seconds)))


def _tasks(names: tuple[TaskName, ...]) -> str:
    """Some names, and how many more.

    >>> _tasks((("dag", "a"), ("dag", "b"), ("dag", "c"), ("dag", "d")))
    'dag.a, dag.b, dag.c and 1 more'
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(".".join(name) for name in names[:_NAMED]) + more
