"""``airflow hetero explain``: why a task waits, or why it got its devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from rich.console import RenderableType

from hetero_airflow.cli.device_text import count, lease_lines, request_lines, task_name, try_text
from hetero_airflow.cli.output import age, cell, clean, clean_all, moment, table
from hetero_airflow.cli.requests.forecast import Forecast, answer_lines, start_lines
from hetero_airflow.matching.explanation import account_text
from hetero_airflow.model.lease import TERMINAL, Lease
from hetero_airflow.model.plan import Account, CandidateAccount
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.codec import ACCOUNT
from hetero_airflow.store.store import RequestHistory

_STORY: TypeAdapter[RequestHistory] = TypeAdapter(RequestHistory)


def history_json(request_history: RequestHistory) -> dict[str, Any]:
    """A story as JSON values."""
    value: dict[str, Any] = _STORY.dump_python(request_history, mode="json")
    return value


def explain_report(
    request_history: RequestHistory, workers: Mapping[str, Worker], now: datetime, foresight: Forecast | None = None
) -> Iterator[RenderableType]:
    """The request, what became of it and is foreseen of it, and the account of the decision that made it so."""
    pending = request_history.pending
    yield cell(f"{task_name(pending)}, run {try_text(pending)}", style="bold")
    rows = [
        (cell("Asks for"), cell(*request_lines(pending.request))),
        (cell("Priority"), cell(f"{pending.request.priority}, weight {pending.weight}")),
        (cell("Submitted"), cell(f"{moment(pending.submitted_at)}, {age(pending.submitted_at, now)} ago")),
        (cell(request_history.state.capitalize()), cell(*_outcome(request_history, workers, now))),
    ]
    if foresight is not None and foresight.outlook is not None:
        rows.append((cell("Starts"), cell(*start_lines(foresight.outlook, now))))
    yield table(("", ""), rows)
    if foresight is not None and not foresight.starts_now:
        yield cell("")
        yield from (cell(line) for line in answer_lines(foresight.answer))
    if request_history.decisions:
        yield cell("")
        yield from _decision(request_history.decisions[0], request_history.leases, now)
    if len(request_history.decisions) > 1:
        yield cell(f"{count(len(request_history.decisions) - 1, 'earlier decision')}: see --json")


def _outcome(request_history: RequestHistory, workers: Mapping[str, Worker], now: datetime) -> Iterator[str]:
    newest = request_history.decisions[0] if request_history.decisions else None
    if request_history.state == "waiting":
        if newest is None or newest["outcome"] != "wait":
            yield "The scheduler has not decided on it yet; if this stays so, no scheduler runs with HeteroExecutor"
        else:
            yield f"at position {newest['position']} of the queue"
            yield _reason_text(newest["reason"], now)
    elif request_history.state == "placed" and newest is not None and newest["reason"] is not None:
        yield f"does not run yet: {_reason_text(newest['reason'], now)}"
    elif request_history.state == "ended":
        ended = (
            f"{moment(request_history.ended_at)}, {age(request_history.ended_at, now)} ago"
            if request_history.ended_at
            else "at an unknown time"
        )
        yield f"{ended}: {request_history.cause or 'no cause is known'}"
        if newest is not None and newest["outcome"] == "refuse":
            yield f"No known worker could ever run it. Nearest: {newest['nearest']}"
    if request_history.leases:
        lease = request_history.leases[-1]
        before = "before: " if request_history.state == "waiting" else ""
        granted = f"granted {age(lease.granted_at, now)} ago"
        yield f"{before}on {lease.worker_id}, lease {lease.id} ({lease.state}), {granted}"
        yield from lease_lines(lease, workers.get(lease.worker_id))
        if lease.state not in TERMINAL:
            yield f"renewed until {moment(lease.expires_at)}"


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
    own = next((c for c in candidates if c.worker_id == clean(lease.worker_id) and held.issuperset(c.device_ids)), None)
    if own is None:
        return
    others = [candidate for candidate in candidates if candidate is not own]
    where = _where(own)
    if not others:
        yield f"{where} won: nothing else was possible"
        return
    best = max(others, key=lambda candidate: candidate.score)
    if own.score > best.score:
        yield f"{where} won: it scored {own.score:.4g}, the next best {_where(best)} {best.score:.4g}"
        gains = {name: own.terms.get(name, 0.0) - best.terms.get(name, 0.0) for name in {**own.terms, **best.terms}}
        term = max(gains, key=lambda name: (gains[name], name), default=None)
        if term is not None:
            yield f"what told: {term} {own.terms.get(term, 0.0):.4g} against {best.terms.get(term, 0.0):.4g}"
    elif own.score == best.score:
        yield f"{where} won: {_where(best)} scored {best.score:.4g} too, and of equals the first is taken"


def _where(candidate: CandidateAccount) -> str:
    return f"{candidate.worker_id} ({', '.join(candidate.device_ids)})"


def _reason_text(reason: Mapping[str, str] | None, now: datetime) -> str:
    if reason is None:
        return "no reason is known"
    ends = reason.get("until")
    left = f"; in {age(now, datetime.fromisoformat(ends))} what is there is taken" if ends else ""
    return f"{reason['code']}: asked {reason['asked']}, found {reason['found']}{left}"
