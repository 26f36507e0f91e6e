"""``airflow hetero explain``: why a task waits, or why it got its devices."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from pydantic import TypeAdapter
from rich.console import RenderableType
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.live_snapshot import configured_policy, live_snapshot
from hetero_airflow.cli.output import age, cell, clean, clean_all, moment, show, show_json, table
from hetero_airflow.cli.requests.forecast import change_lines, forecast_json, start_lines
from hetero_airflow.cli.watch import watch
from hetero_airflow.errors import HeteroError, SettingsError, StoreUnavailable
from hetero_airflow.executor.explanation.device_text import count, lease_lines, request_lines, task_name, try_text
from hetero_airflow.executor.explanation.forecast import Forecast, forecast_start
from hetero_airflow.executor.explanation.live_snapshot import placed_requests
from hetero_airflow.matching.explanation import account_text
from hetero_airflow.model.lease import TERMINAL, Lease
from hetero_airflow.model.plan import PAUSED, Account, CandidateAccount
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.task_names import TaskNames, request_ids
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.codec import ACCOUNT
from hetero_airflow.store.store import RequestHistory

MAX_NAMES = 5
_HISTORY: TypeAdapter[RequestHistory] = TypeAdapter(RequestHistory)


@action
def explain(args: Namespace) -> None:
    """Print the history of one request, and the forecast of its start; again and again, if asked."""
    names = (args.dag_id, args.run_id or latest_run(args.dag_id), args.task_id, args.map_index)
    if args.watch and args.json:
        raise SettingsError("--watch", found="--json beside it", remedy="Give one of them")
    if args.watch and sys.stdout.isatty():
        watch(lambda _height: _report(*_read(names)))
        return
    history, snapshot, forecast, now = _read(names)
    if args.json:
        show_json(history_json(history) | forecast_json(forecast))
    else:
        show(*_report(history, snapshot, forecast, now))


def _read(names: tuple[str, str, str, int]) -> tuple[RequestHistory, Snapshot, Forecast | None, datetime]:
    """The history, the live snapshot, the forecast and the time.

    :raises HeteroError: the task instance has no request
    """
    now = datetime.now(UTC)
    history = open_store().request_history(*names)
    if history is None:
        raise missing_request_error(*names)
    snapshot = live_snapshot()
    decide, period_s = configured_policy()
    return history, snapshot, forecast_start(history, snapshot, decide, now, period_s), now


def _report(
    history: RequestHistory, snapshot: Snapshot, forecast: Forecast | None, now: datetime
) -> Iterator[RenderableType]:
    named = with_task_names(history, lambda ids: placed_requests(database(), ids).values())
    return explain_report(named, {worker.id: worker for worker in snapshot.workers}, now, forecast)


def latest_run(dag_id: str) -> str:
    """The id of the newest run of a DAG; an empty text if it has none.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    try:
        with create_session(scoped=False) as session:
            newest = select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)
            return session.scalar(newest) or ""
    except SQLAlchemyError as error:
        asked = f"the newest run of {dag_id}"
        raise StoreUnavailable(asked, found=type(error).__name__, remedy="Run `airflow db migrate`") from error


def with_task_names(
    history: RequestHistory, read_requests: Callable[[set[str]], Iterable[PendingRequest]]
) -> RequestHistory:
    """The history with the names of tasks in its newest decision and its cause, in place of the ids of requests.

    :param read_requests: the requests with these ids that the store knows
    """
    newest, cause = json.dumps(history.decisions[:1]), history.cause
    ids = request_ids(f"{newest} {cause}")
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
    return replace(history, decisions=decisions, cause=names.put_into(cause))


def history_json(history: RequestHistory) -> dict[str, Any]:
    """The history as JSON values."""
    value: dict[str, Any] = _HISTORY.dump_python(history, mode="json")
    return value


def explain_report(
    history: RequestHistory, workers: Mapping[str, Worker], now: datetime, forecast: Forecast | None = None
) -> Iterator[RenderableType]:
    """The request, its state, the forecast of its start, and the account of its newest decision. Pure."""
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
    yield table(("", ""), rows)
    if forecast is not None and not forecast.starts_now:
        yield cell("")
        yield from (cell(line) for line in change_lines(forecast.change))
    if history.decisions:
        yield cell("")
        yield from _decision(history.decisions[0], history.leases, now)
    if len(history.decisions) > 1:
        yield cell(f"{count(len(history.decisions) - 1, 'earlier decision')}: see --json")


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
        if newest is not None and newest["outcome"] == "refuse":
            yield f"No known worker can ever run it. Nearest: {newest['nearest']}"
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
    others = [candidate for candidate in candidates if candidate is not winner]
    where = _where(winner)
    if not others:
        yield f"{where} won: nothing else was possible"
        return
    best = max(others, key=lambda candidate: candidate.score)
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
    limit = f"; after {age(now, datetime.fromisoformat(ends))} it takes any free devices" if ends else ""
    return f"{reason['code']}: asked {reason['asked']}, found {reason['found']}{limit}"


def missing_request_error(dag_id: str, run_id: str, task_id: str, map_index: int) -> HeteroError:
    """The error for a task instance that has no request in the store.

    :raises StoreUnavailable: Airflow's tables can't be read
    """
    instance = f"[{map_index}]" if map_index >= 0 else ""
    asked = f"the device request of {dag_id}.{task_id}{instance}" + (f" in run {run_id}" if run_id else "")
    try:
        found, remedy = _read_cause(dag_id, run_id, task_id, map_index)
    except SQLAlchemyError as error:
        raise StoreUnavailable(asked, found=type(error).__name__, remedy="Run `airflow db migrate`") from error
    return HeteroError(asked, found=found, remedy=remedy)


def _read_cause(dag_id: str, run_id: str, task_id: str, map_index: int) -> tuple[str, str]:
    with create_session(scoped=False) as session:
        of_dag = select(DagRun.run_id).where(DagRun.dag_id == dag_id)
        runs = list(session.scalars(of_dag.order_by(DagRun.id.desc()).limit(MAX_NAMES + 1)))
        has_run = session.scalar(of_dag.where(DagRun.run_id == run_id)) is not None
        of_run = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state).where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id
        )
        rows = session.execute(of_run.order_by(TaskInstance.task_id, TaskInstance.map_index)).all()
    states = {row.map_index: row.state for row in rows if row.task_id == task_id}
    tasks = list(dict.fromkeys(row.task_id for row in rows))
    return missing_request_cause(dag_id, runs, has_run, tasks, states, map_index)


def missing_request_cause(
    dag_id: str,
    runs: Sequence[str],
    has_run: bool,
    tasks: Sequence[str],
    states: Mapping[int, str | None],
    map_index: int,
) -> tuple[str, str]:
    """What was found, and what to do. Pure.

    :param runs: the newest runs of the DAG
    :param has_run: whether the requested run exists; it can be older than those
    :param tasks: the tasks of that run
    :param states: map index → state of the task's instances in that run
    """
    if not runs:
        return f"no run of a DAG {dag_id}", "`airflow dags list` shows the DAGs"
    if not has_run:
        return "no such run", f"Its newest runs are {_some(runs)}"
    if not states:
        return "no such task in the run", f"Its tasks are {_some(tasks)}"
    if map_index not in states:
        if list(states) == [-1]:
            return "a task that is not mapped", "Leave --map-index out"
        return "no such instance of a mapped task", f"Give --map-index {_some(map(str, states), ' or ')}"
    if states[map_index] in (None, "scheduled"):
        return "a task that is not queued yet", "Try again when it is queued: it requests its devices then"
    return (
        f"no request; the task instance is {states[map_index]}",
        "It requests no device, it does not run with HeteroExecutor, or its history was pruned",
    )


def _some(names: Iterable[str], separator: str = ", ") -> str:
    first = list(islice(names, MAX_NAMES + 1))
    return separator.join([*first[:MAX_NAMES], *(["…"] if len(first) > MAX_NAMES else [])])
