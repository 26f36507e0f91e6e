"""Reads the stored decisions in the order in which they were made, a page at a time."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, select

from hetero_airflow.store import tables
from hetero_airflow.store.codec import decision_json
from hetero_airflow.store.sql.queue import read_newest_decision_id
from hetero_airflow.store.sql.transaction import read_transaction

PAGE = 200
"""Decisions that are in memory at a time. An account has up to some kilobytes."""

_DECISION, _REQUEST = tables.decision.c, tables.request.c
_TASK = (_REQUEST.dag_id, _REQUEST.run_id, _REQUEST.task_id, _REQUEST.map_index, _REQUEST.try_number)
_MADE = (_DECISION.decided_at, _DECISION.outcome, _DECISION.position, _DECISION.reason, _DECISION.nearest)


def decision_pages(engine: Engine, since: datetime) -> Iterator[list[dict[str, Any]]]:
    """The decisions made at this time or later, as JSON values with the same names in each.

    Each page is a transaction of its own, so a slow reader holds nothing in the database. Decisions that are made
    after the first page was asked for are left out. Decisions that are pruned meanwhile are missing.

    :raises StoreUnavailable: the database is down, locked, or not migrated
    """
    with read_transaction(engine) as connection:
        last = read_newest_decision_id(connection)
    query = (
        select(_DECISION.id, _DECISION.request_id, *_TASK, *_MADE, _DECISION.account)
        .join_from(tables.decision, tables.request, _REQUEST.id == _DECISION.request_id)
        .where(_DECISION.decided_at >= since, _DECISION.id <= last)
        .order_by(_DECISION.id)
        .limit(PAGE)
    )
    after = 0
    while True:
        with read_transaction(engine) as connection:
            rows = connection.execute(query.where(_DECISION.id > after)).all()
        if rows:
            yield [_exported(row._asdict()) for row in rows]
        if len(rows) < PAGE:
            return
        after = rows[-1].id


def _exported(columns: dict[str, Any]) -> dict[str, Any]:
    """The decision of a row, with its request and task."""
    decision = decision_json(columns, columns["decided_at"])
    names = ("request_id", *(column.name for column in _TASK))
    task = {name: columns[name] for name in names}
    return {"decided_at": decision.pop("decided_at"), "outcome": decision.pop("outcome")} | task | decision
