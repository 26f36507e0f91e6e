"""Heartbeats in the tables: those of agents, with the leases that they report, and those of the API server."""

from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from hetero_airflow.model.heartbeat import ServerHeartbeat, next_server_heartbeat
from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.store import tables
from hetero_airflow.store.codec import LEASES
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks
from hetero_airflow.store.store import SCHEDULER_KEPT, SchedulerDecided

_SEEN, _LEASE = tables.telemetry.c, tables.lease.c


def read_server_heartbeat(connection: Connection) -> ServerHeartbeat | None:
    """The last heartbeat of the API server."""
    row = connection.execute(select(tables.server)).one_or_none()
    return None if row is None else ServerHeartbeat(row.since, row.seen_at)


def record_server_heartbeat(transaction: WriteTransaction, now: datetime, *, is_new: bool) -> None:
    """Record a heartbeat of a process of the API server."""
    before = read_server_heartbeat(transaction.connection)
    heartbeat = next_server_heartbeat(before, now, is_new=is_new)
    values = {"id": 1, "since": heartbeat.since, "seen_at": heartbeat.at}
    transaction.connection.execute(insert(tables.server) if before is None else update(tables.server), values)


def record_decision(transaction: WriteTransaction, event: SchedulerDecided) -> None:
    """Record that a scheduler has decided."""
    scheduler = tables.scheduler.c
    is_old = or_(scheduler.id == event.scheduler, scheduler.decided_at < event.at - SCHEDULER_KEPT)
    transaction.connection.execute(delete(tables.scheduler).where(is_old))
    transaction.connection.execute(insert(tables.scheduler), {"id": event.scheduler, "decided_at": event.at})


def holds_all_leases(transaction: WriteTransaction, worker_id: str, leases: frozenset[str]) -> bool:
    """Whether the worker holds each of these leases."""
    is_held = (_LEASE.worker_id == worker_id, _LEASE.state.not_in(TERMINAL))
    query = select(func.count()).select_from(tables.lease).where(*is_held)
    counts = (
        transaction.connection.execute(query.where(_LEASE.id.in_(chunk))).scalar_one()
        for chunk in chunks(sorted(leases))
    )
    return sum(counts) == len(leases)


def read_reported_leases(transaction: WriteTransaction, worker_id: str) -> frozenset[str]:
    """The leases that the worker's agent reported last."""
    query = select(_SEEN.leases).where(_SEEN.worker_id == worker_id, _SEEN.leases.is_not(None))
    reported = transaction.connection.execute(query).scalar_one_or_none()
    return frozenset() if reported is None else LEASES.validate_json(reported)
