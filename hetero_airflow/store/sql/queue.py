"""Reads pages of the queue as the last cycle left it, for the web routes; writes what a person changes in it."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select, update

from hetero_airflow.model.plan import PAUSED, Reason
from hetero_airflow.store import tables
from hetero_airflow.store.codec import REASON
from hetero_airflow.store.sql.reads import ReadRequest, read_pending
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.store.store import QueueChange

_REQUEST, _DECISION = tables.request.c, tables.decision.c
TASK_COLUMNS = (_REQUEST.dag_id, _REQUEST.run_id, _REQUEST.task_id, _REQUEST.map_index, _REQUEST.try_number)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The task of a request or of a lease, which has the id."""

    id: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int


@dataclass(frozen=True, slots=True)
class WaitingRequest(QueueRow):
    """A waiting request, with the newest decision on it."""

    submitted_at: datetime
    position: int | None
    """Place in the queue, from 1; None before the first cycle."""
    reason: str
    """Why it waits; empty before the first cycle."""


def read_waiting_requests(
    connection: Connection, dag_ids: Collection[str], offset: int, limit: int
) -> list[WaitingRequest]:
    """The waiting requests of these DAGs, in the order of the queue; new requests last."""
    newest = select(func.max(_DECISION.id)).where(_DECISION.request_id == _REQUEST.id).correlate(tables.request)
    query = (
        select(
            _REQUEST.id, *TASK_COLUMNS, _REQUEST.submitted_at, _DECISION.position, _REQUEST.is_paused, _DECISION.reason
        )
        .join_from(tables.request, tables.decision, _DECISION.id == newest.scalar_subquery(), isouter=True)
        .where(_REQUEST.state == "waiting", _REQUEST.dag_id.in_(sorted(dag_ids)))
        .order_by(_DECISION.position.is_(None), _DECISION.position, _REQUEST.submitted_at, _REQUEST.id)
    )
    return [
        WaitingRequest(
            *(row.id, row.dag_id, row.run_id, row.task_id, row.map_index, row.try_number),
            submitted_at=row.submitted_at,
            position=row.position,
            reason=str(_newest_reason(row.reason, is_paused=row.is_paused) or ""),
        )
        for row in connection.execute(query.offset(offset).limit(limit))
    ]


def _newest_reason(reason: str | None, *, is_paused: bool) -> Reason | None:
    if is_paused:  # the newest decision may be older
        return PAUSED
    return None if reason is None else REASON.validate_json(reason)


def read_newest_decision_id(connection: Connection) -> int:
    """The id of the newest decision; 0 before the first."""
    return connection.scalar(select(func.max(_DECISION.id))) or 0


def count_waiting_reasons(connection: Connection) -> Counter[str]:
    """Code of a `Reason` → number of waiting requests; ``undecided`` for those on which no cycle has decided."""
    newest = select(func.max(_DECISION.id)).where(_DECISION.request_id == _REQUEST.id).correlate(tables.request)
    query = (
        select(_REQUEST.is_paused, _DECISION.reason, func.count())
        .join_from(tables.request, tables.decision, _DECISION.id == newest.scalar_subquery(), isouter=True)
        .where(_REQUEST.state == "waiting")
        .group_by(_REQUEST.is_paused, _DECISION.reason)
    )
    counts: Counter[str] = Counter()
    for is_paused, reason, count in connection.execute(query):
        newest_reason = _newest_reason(reason, is_paused=is_paused)
        counts["undecided" if newest_reason is None else newest_reason.code.value] += count
    return counts


def change_queue(transaction: WriteTransaction, changes: Sequence[QueueChange], read_request: ReadRequest) -> None:
    """Write the changes in order; those of requests that do not wait are left out."""
    for change in changes:
        waits = (_REQUEST.id == change.request_id) & (_REQUEST.state == "waiting")
        row = transaction.connection.execute(select(tables.request).where(waits)).one_or_none()
        pending = None if row is None else read_pending(row, read_request)
        if pending is None:
            continue
        changed = change.of(pending)
        values = {
            "is_paused": changed.is_paused,
            "request": changed.request.model_dump_json(exclude_defaults=True),
            "changed": transaction.stamp,
        }
        transaction.connection.execute(update(tables.request).where(waits).values(values))
        transaction.is_visible = True
