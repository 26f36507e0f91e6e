"""Reads leases that ended beside the live ones, for people."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, select

from hetero_airflow.store import tables

MAX_LEASES = 5000
"""Leases that one call reads: the newest."""

_LEASE, _REQUEST, _HELD = tables.lease.c, tables.request.c, tables.lease_device.c


@dataclass(frozen=True, slots=True)
class PastLease:
    """A lease, live or ended, and its task."""

    id: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    worker_id: str
    state: str
    granted_at: datetime
    ended_at: datetime | None
    outcome: str | None
    """How the task stood at the end; None for one that never ran, that runs, or if it is not known."""
    cause: str
    device_ids: tuple[str, ...]


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
    return _read(connection, instance)


def read_leases_since(connection: Connection, since: datetime, worker_ids: Iterable[str]) -> tuple[PastLease, ...]:
    """The leases on these workers that are live or ended after this time, the oldest first."""
    is_recent = _LEASE.ended_at.is_(None) | (_LEASE.ended_at >= since)
    return _read(connection, is_recent & _LEASE.worker_id.in_(sorted(worker_ids)))


def _read(connection: Connection, condition: ColumnElement[bool]) -> tuple[PastLease, ...]:
    columns = (
        *(_LEASE.id, _REQUEST.dag_id, _REQUEST.run_id, _REQUEST.task_id, _REQUEST.map_index, _REQUEST.try_number),
        *(_LEASE.worker_id, _LEASE.state, _LEASE.granted_at, _LEASE.ended_at, _LEASE.outcome, _LEASE.cause),
    )
    query = select(*columns).join_from(tables.lease, tables.request, _REQUEST.id == _LEASE.request_id)
    newest = query.where(condition).order_by(_LEASE.token.desc()).limit(MAX_LEASES)
    rows = connection.execute(newest).all()[::-1]
    devices: dict[str, list[str]] = defaultdict(list)
    ids = newest.with_only_columns(_LEASE.id).subquery()
    held = select(_HELD.lease_id, _HELD.device_id).join(ids, ids.c.id == _HELD.lease_id)
    for part in connection.execute(held.order_by(_HELD.lease_id, _HELD.position)):
        devices[part.lease_id].append(part.device_id)
    return tuple(PastLease(**row._asdict(), device_ids=tuple(devices[row.id])) for row in rows)
