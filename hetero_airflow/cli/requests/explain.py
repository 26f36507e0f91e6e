"""``airflow hetero explain``: why a task waits, or why it got its devices."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from rich.console import RenderableType

from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.live_snapshot import configured_policy
from hetero_airflow.cli.output import age, cell, clean, clean_all, moment, show, show_json, table
from hetero_airflow.cli.requests.missing_request import audited_reason, latest_run, missing_request_error
from hetero_airflow.cli.watch import watch
from hetero_airflow.errors import SettingsError
from hetero_airflow.executor.explanation.device_text import count, lease_lines, request_lines, task_name, try_text
from hetero_airflow.executor.explanation.forecast import Forecast, forecast_start
from hetero_airflow.executor.explanation.live_snapshot import LiveSnapshots, placed_requests
from hetero_airflow.executor.explanation.request_text import request_text
from hetero_airflow.executor.explanation.transition_text import transition_text
from hetero_airflow.matching.accounts import account_text
from hetero_airflow.model.estimates import Estimates, TaskName
from hetero_airflow.model.lease import TERMINAL, Lease
from hetero_airflow.model.plan import PAUSED, Account, CandidateAccount
from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.task_names import TaskNames, request_ids
from hetero_airflow.model.worker import Worker
from hetero_airflow.scheduling.advice.start_estimate import StartEstimate
from hetero_airflow.scheduling.advice.what_if import CheapestChange
from hetero_airflow.scheduling.learning.learner import device_classes
from hetero_airflow.store.codec import ACCOUNT
from hetero_airflow.store.store import RequestHistory


@dataclass(frozen=True, slots=True)
class ClassSpeed:
    """The speed of a task that reports its steps, on one device class."""

    device_class: str
    steps_per_s: float
    """As policies use it."""
    deviation: float
    """Its standard error as a part of it; of a class that was not tried, relative to the fastest measured one."""
    relative: float
    """Part of the speed on the fastest of these classes."""
    steps: int
    """Steps that the task did on such devices; 0 if it was not measured there."""
    reported_steps_per_s: float | None
    """What the task reported; None if it was not measured there."""


_HISTORY: TypeAdapter[RequestHistory] = TypeAdapter(RequestHistory)


@dataclass(frozen=True, slots=True)
class _Explained:
    """What is known of one request."""

    history: RequestHistory
    snapshot: Snapshot
    forecast: Forecast | None
    speeds: tuple[ClassSpeed, ...]
    ends_at: datetime | None
    """When it ends, by its own report."""
    now: datetime


@action
def explain(args: Namespace) -> None:
    """Print the history of one request, and the forecast of its start; again and again, if asked."""
    names = (args.dag_id, args.run_id or latest_run(args.dag_id), args.task_id, args.map_index)
    if args.watch and args.json:
        raise SettingsError("--watch", found="--json beside it", remedy="Give one of them")
    read = _reader(names)
    if args.watch and sys.stdout.isatty():
        watch(lambda _height: _report(read()))
        return
    explained = read()
    if args.json:
        parts = history_json(explained.history), forecast_json(explained.forecast), speeds_json(explained.speeds)
        ends_at = {"ends_at": explained.ends_at.isoformat() if explained.ends_at else None}
        show_json({name: value for part in (*parts, ends_at) for name, value in part.items()})
    else:
        show(*_report(explained))


def _reader(names: tuple[str, str, str, int]) -> Callable[[], _Explained]:
    """Returns what is known at the moment of each call. Only what has changed is read again."""
    store = open_store()
    snapshots = LiveSnapshots(store)
    decide, period_s = configured_policy()

    def read() -> _Explained:
        """See above.

        :raises HeteroError: the task instance has no request
        """
        now, history = datetime.now(UTC), store.request_history(*names)
        if history is None:
            raise missing_request_error(*names)
        if history.is_refused:
            history = replace(history, cause=audited_reason(*names) or history.cause)
        snapshot = snapshots.read_for_decisions()
        forecast = forecast_start(history, snapshot, decide, now, period_s)
        classes = device_classes(snapshot.workers)
        speeds = class_speeds(history.pending.task, snapshot.estimates, store.speeds()[1], classes)
        live = [lease.id for lease in history.leases if lease.state not in TERMINAL]
        ends_at = snapshot.estimates.reported_ends.get(live[-1]) if live else None
        return _Explained(history, snapshot, forecast, speeds, ends_at, now)

    return read


def _report(explained: _Explained) -> Iterator[RenderableType]:
    named = with_task_names(explained.history, lambda ids: placed_requests(database(), ids).values())
    workers = {worker.id: worker for worker in explained.snapshot.workers}
    return explain_report(named, workers, explained.now, explained.forecast, explained.speeds, explained.ends_at)


def with_task_names(
    history: RequestHistory, read_requests: Callable[[set[str]], Iterable[PendingRequest]]
) -> RequestHistory:
    """The history with the names of tasks in its newest decision, its cause and its transitions, in place of the ids of
    requests.

    :param read_requests: the requests with these ids that the store knows
    """
    newest, cause = json.dumps(history.decisions[:1]), history.cause
    ids = request_ids(" ".join([newest, cause, *(transition.text for transition in history.transitions)]))
    if not ids:
        return history
    names = TaskNames(read_requests(ids))

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return names.put_into(value)
        if isinstance(value, list):
            return [named(item) for item in value]
        return {key: named(item) for key, item in value.items()} if isinstance(value, dict) else value

    decisions = (*map(named, json.loads(newest)), *history.decisions[1:])
    transitions = tuple(step._replace(text=names.put_into(step.text)) for step in history.transitions)
    return replace(history, decisions=decisions, cause=names.put_into(cause), transitions=transitions)


def history_json(history: RequestHistory) -> dict[str, Any]:
    """The history as JSON values."""
    value: dict[str, Any] = _HISTORY.dump_python(history, mode="json")
    return value


def explain_report(
    history: RequestHistory,
    workers: Mapping[str, Worker],
    now: datetime,
    forecast: Forecast | None = None,
    speeds: Sequence[ClassSpeed] = (),
    ends_at: datetime | None = None,
) -> Iterator[RenderableType]:
    """The request, its state, the forecast of its start, its speeds, the account of its newest decision, and what
    happened to its runs. Pure.

    :param ends_at: when it ends, by its own report; None if it does not run, or reports no end
    """
    pending = history.pending
    yield cell(f"{task_name(pending)}, run {try_text(pending)}", style="bold")
    rows = [
        (cell("Asks for"), cell(*request_lines(pending.request))),
        (cell("Priority"), cell(f"{pending.request.priority}, weight {pending.weight}")),
        (cell("Submitted"), cell(f"{moment(pending.submitted_at)}, {age(pending.submitted_at, now)} ago")),
        (cell(history.state.capitalize()), cell(*_outcome(history, workers, now))),
    ]
    if forecast is not None and forecast.start is not None:
        rows.append((cell("Starts"), cell(*start_lines(forecast.start, now))))
    if ends_at is not None:
        rows.append((cell("Ends"), cell(f"{moment(ends_at)}, in {age(now, ends_at)}, by the steps that it reports")))
    if speeds:
        rows.append((cell("Speed"), cell(*speed_lines(speeds))))
    yield table(("", ""), rows)
    if forecast is not None and not forecast.starts_now:
        yield cell("")
        yield from (cell(line) for line in change_lines(forecast.change))
    if history.decisions:
        yield cell("")
        yield from _decision(history.decisions[0], history.leases, now)
    if len(history.decisions) > 1:
        yield cell(f"{count(len(history.decisions) - 1, 'earlier decision')}: see --json")
    if history.transitions:
        yield cell("")
        yield table(
            ("At", "Then", "What was found out"),
            [(cell(moment(step.at)), cell(step.phase), cell(transition_text(step))) for step in history.transitions],
        )


def _outcome(history: RequestHistory, workers: Mapping[str, Worker], now: datetime) -> Iterator[str]:
    newest = history.decisions[0] if history.decisions else None
    if history.state == "waiting":
        yield from [str(PAUSED)] if history.pending.is_paused else _wait_lines(newest, now)
    elif history.state == "placed" and newest is not None and newest["reason"] is not None:
        yield f"does not run yet: {_reason_text(newest['reason'], now)}"
    elif history.state == "ended":
        at = history.ended_at
        ended = f"{moment(at)}, {age(at, now)} ago" if at else "at an unknown time"
        yield f"{ended}: {history.cause or 'no cause is known'}"
        if history.is_refused and history.decisions[0]["nearest"] not in history.cause:
            yield f"No known worker can ever run it. Nearest: {history.decisions[0]['nearest']}"
    if history.leases:
        lease = history.leases[-1]
        before = "before: " if history.state == "waiting" else ""
        granted = f"granted {age(lease.granted_at, now)} ago"
        yield f"{before}on {lease.worker_id}, lease {lease.state}, {granted}"
        yield from lease_lines(lease, workers.get(lease.worker_id))
        if lease.state not in TERMINAL:
            yield f"renewed until {moment(lease.expires_at)}"


def _wait_lines(newest: Mapping[str, Any] | None, now: datetime) -> Iterator[str]:
    if newest is None or newest["outcome"] != "wait":
        yield "no decision yet; if this does not change, no scheduler runs with HeteroExecutor"
    else:
        yield f"at position {newest['position']} of the queue"
        yield _reason_text(newest["reason"], now)


def _decision(decision: Mapping[str, Any], leases: Sequence[Lease], now: datetime) -> Iterator[RenderableType]:
    account = ACCOUNT.validate_python(clean_all(decision["account"]))
    decided_at = datetime.fromisoformat(decision["decided_at"])
    yield cell(f"Decided {age(decided_at, now)} ago, {moment(decided_at)}", style="bold")
    yield cell(*account_text(account).split("\n"))
    if decision["outcome"] == "place" and leases:
        yield cell(*_why_it_won(account, leases[-1]))


def _why_it_won(account: Account, lease: Lease) -> Iterator[str]:
    if not 0 <= lease.alternative < len(account.alternatives):
        return
    if lease.alternative > 0:
        yield f"Alternative {lease.alternative + 1} was taken"
    candidates = account.alternatives[lease.alternative].candidates
    held = {clean(claim.device_id) for claim in lease.claims}
    worker_id = clean(lease.worker_id)
    winner = next((c for c in candidates if c.worker_id == worker_id and held.issuperset(c.device_ids)), None)
    if winner is None:
        return
    losers = [candidate for candidate in candidates if candidate is not winner]
    where = _where(winner)
    if not losers:
        yield f"{where} was taken: the policy had no other candidate"
        return
    best = max(losers, key=lambda candidate: candidate.score)
    if winner.score > best.score:
        yield f"{where} won: it scored {winner.score:.4g}, the next best {_where(best)} {best.score:.4g}"
        yield from _largest_gain(winner.terms, best.terms)
    elif winner.score == best.score:
        yield f"{where} won: {_where(best)} also scored {best.score:.4g}, and the first of equal candidates is taken"


def _largest_gain(winner: Mapping[str, float], next_best: Mapping[str, float]) -> Iterator[str]:
    gains = {name: winner.get(name, 0.0) - next_best.get(name, 0.0) for name in {**winner, **next_best}}
    if gains:
        term = max(gains, key=lambda name: (gains[name], name))
        yield f"the largest difference: {term} {winner.get(term, 0.0):.4g} against {next_best.get(term, 0.0):.4g}"


def _where(candidate: CandidateAccount) -> str:
    return f"{candidate.worker_id} ({', '.join(candidate.device_ids)})"


def _reason_text(reason: Mapping[str, str] | None, now: datetime) -> str:
    if reason is None:
        return "no reason is known"
    ends = reason.get("until")
    limit = f"; after {age(now, datetime.fromisoformat(ends))} {reason.get('then', '')}" if ends else ""
    return f"{reason['code']}: asked {reason['asked']}, found {reason['found']}{limit}"


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


_FAR = math.log(1.5)
"""A measurement that counts as another speed than it says, by this factor or more, is shown as such."""


def class_speeds(
    task: TaskName, estimates: Estimates, measured: Iterable[MeasuredSpeed], classes: Collection[str]
) -> tuple[ClassSpeed, ...]:
    """The speeds on the classes on which the task was measured, and on the given ones; the fastest first.

    It is empty for a task that reports no steps.
    """
    reported = {speed.device_class: speed for speed in measured if speed.task == task}
    deviations = estimates.speed_deviations.get(task, {})
    names = (deviations.keys() & {*classes}) | (reported.keys() & deviations.keys())
    speeds = {name: estimates.speed(task, name) or 0.0 for name in names}
    fastest = max(speeds.values(), default=0.0)
    found = (
        ClassSpeed(
            name,
            speeds[name],
            reported[name].deviation if name in reported else deviations[name],
            speeds[name] / fastest if fastest else 1.0,
            reported[name].steps if name in reported else 0,
            math.exp(reported[name].log_speed) if name in reported else None,
        )
        for name in names
    )
    return tuple(sorted(found, key=lambda speed: (-speed.steps_per_s, speed.device_class)))


def speed_lines(speeds: Iterable[ClassSpeed]) -> Iterator[str]:
    """The speeds for people.

    >>> measured = ClassSpeed("nvidia/t4", 2.1, 0.048, 1.0, 240, 2.1)
    >>> [line] = speed_lines([measured])
    >>> line
    'nvidia/t4: learned from 240 steps on this device: 2.1 ± 0.1 steps/s'
    """
    for speed in speeds:
        part = "" if speed.relative == 1.0 else f", {speed.relative:.2g} of the fastest"
        if speed.reported_steps_per_s is None:
            low, high = (speed.steps_per_s * math.exp(side * speed.deviation) for side in (-1, 1))
            text = f"not tried yet: {_number(low)} to {_number(high)} steps/s by other tasks and the data sheets"
        else:
            error = speed.deviation * speed.reported_steps_per_s
            text = (
                f"learned from {speed.steps:,} steps on this device: {_with_error(speed.reported_steps_per_s, error)}"
            )
            if abs(math.log(speed.reported_steps_per_s / speed.steps_per_s)) >= _FAR:
                text += f"; it counts as {_number(speed.steps_per_s)}, since other tasks show nothing like it"
        yield f"{speed.device_class}: {text}{part}"


def speeds_json(speeds: Iterable[ClassSpeed]) -> dict[str, Any]:
    """The speeds as JSON values."""
    return {"speeds": [asdict(speed) for speed in speeds]}


def _with_error(value: float, error: float) -> str:
    """A speed with its error, which has one digit.

    >>> _with_error(2.13, 0.1), _with_error(1234.0, 31.0), _with_error(0.021, 0.0002)
    ('2.1 ± 0.1 steps/s', '1,230 ± 30 steps/s', '0.0210 ± 0.0002 steps/s')
    """
    digits = -math.floor(math.log10(max(error, value / 1000)))
    return f"{round(value, digits):,.{max(digits, 0)}f} ± {round(error, digits):,.{max(digits, 0)}f} steps/s"


def _number(value: float) -> str:
    """Two digits that count.

    >>> _number(1234.0), _number(0.0123)
    ('1,200', '0.012')
    """
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(digits, 0)}f}"
