"""Reads leases with their tasks, for people: those that are live, and those that ended."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, select

from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.store import tables
from hetero_airflow.store.sql.queue import TASK_COLUMNS, QueueRow

MAX_LEASES = 5000
"""Leases that one call reads of those that may have ended: the newest."""

_LEASE, _REQUEST, _HELD = tables.lease.c, tables.request.c, tables.lease_device.c


@dataclass(frozen=True, slots=True)
class LiveLease(QueueRow):
    """A live lease and its task."""

    worker_id: str
    device_ids: tuple[str, ...]
    state: str
    granted_at: datetime


@dataclass(frozen=True, slots=True)
class PastLease(LiveLease):
    """A lease, live or ended, and its task."""

    ended_at: datetime | None
    outcome: str | None
    """How the task stood at the end; None for one that never ran, that runs, or if it is not known."""
    cause: str


L = TypeVar("L", bound=LiveLease)

_LIVE = select(_LEASE.id, *TASK_COLUMNS, _LEASE.worker_id, _LEASE.state, _LEASE.granted_at).join_from(
    tables.lease, tables.request, _REQUEST.id == _LEASE.request_id
)
_PAST = _LIVE.add_columns(_LEASE.ended_at, _LEASE.outcome, _LEASE.cause)


def read_live_leases(connection: Connection, dag_ids: Collection[str], offset: int, limit: int) -> list[LiveLease]:
    """The live leases of these DAGs, the oldest first."""
    is_shown = _LEASE.state.not_in(TERMINAL) & _REQUEST.dag_id.in_(sorted(dag_ids))
    oldest_first = _LIVE.where(is_shown).order_by(_LEASE.token)
    return _read(connection, oldest_first.offset(offset).limit(limit), LiveLease)


def read_task_leases(
    connection: Connection, dag_id: str, run_id: str, task_id: str, map_index: int
) -> tuple[PastLease, ...]:
    """The leases of all tries of a task instance, the oldest first."""
    instance = (
        (_REQUEST.dag_id == dag_id)
        & (_REQUEST.run_id == run_id)
        & (_REQUEST.task_id == task_id)
        & (_REQUEST.map_index == map_index)
    )
    return _read_newest(connection, instance)


def read_leases_since(connection: Connection, since: datetime, worker_ids: Iterable[str]) -> tuple[PastLease, ...]:
    """The leases on these workers that are live or ended after this time, the oldest first."""
    is_recent = _LEASE.ended_at.is_(None) | (_LEASE.ended_at >= since)
    return _read_newest(connection, is_recent & _LEASE.worker_id.in_(sorted(worker_ids)))


def _read_newest(connection: Connection, condition: ColumnElement[bool]) -> tuple[PastLease, ...]:
    newest_first = _PAST.where(condition).order_by(_LEASE.token.desc())
    return tuple(reversed(_read(connection, newest_first.limit(MAX_LEASES), PastLease)))


def _read(connection: Connection, query: Select[Any], kind: type[L]) -> list[L]:
    rows = connection.execute(query).all()
    devices: defaultdict[str, list[str]] = defaultdict(list)
    ids = query.with_only_columns(_LEASE.id).subquery()
    held = select(_HELD.lease_id, _HELD.device_id).join(ids, ids.c.id == _HELD.lease_id)
    for part in connection.execute(held.order_by(_HELD.lease_id, _HELD.position)):
        devices[part.lease_id].append(part.device_id)
    return [kind(**row._asdict(), device_ids=tuple(devices[row.id])) for row in rows]
