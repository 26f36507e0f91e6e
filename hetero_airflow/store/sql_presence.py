"""Who is there, in the tables: agents with what they say of leases, and the API server that hears them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, Row, insert, select, update

from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.model.sight import ServerSight, WorkerSight, heard_again
from hetero_airflow.store import tables
from hetero_airflow.store.codec import LEASES
from hetero_airflow.store.sql_transaction import Writing, chunks

_SEEN, _LEASE = tables.telemetry.c, tables.lease.c


def read_last_seen(connection: Connection) -> dict[str, datetime]:
    """Worker id → when it was last seen."""
    rows = connection.execute(select(_SEEN.worker_id, _SEEN.seen_at))
    return {row.worker_id: row.seen_at for row in rows}


def read_sights(connection: Connection) -> dict[str, WorkerSight]:
    """Worker id → what its agent said last."""
    query = select(_SEEN.worker_id, _SEEN.seen_at, _SEEN.leases).where(_SEEN.leases.is_not(None))
    return {
        row.worker_id: WorkerSight(row.seen_at, LEASES.validate_json(row.leases)) for row in connection.execute(query)
    }


def read_server(connection: Connection) -> ServerSight | None:
    """When the API server was there."""
    row = _server(connection)
    return None if row is None else ServerSight(row.since, row.seen_at)


def note_server(writing: Writing, now: datetime, *, is_new: bool) -> None:
    """A process of the API server is there."""
    before = read_server(writing.connection)
    sight = heard_again(before, now, is_new=is_new)
    values = {"id": 1, "since": sight.since, "seen_at": sight.at}
    writing.connection.execute(insert(tables.server) if before is None else update(tables.server), values)


def are_held(writing: Writing, worker_id: str, leases: frozenset[str]) -> bool:
    """Whether the worker holds each of these leases."""
    states = states_of(writing, worker_id, leases)
    return len(states) == len(leases) and TERMINAL.isdisjoint(states.values())


def read_leases_told(writing: Writing, worker_id: str) -> frozenset[str]:
    """The leases that the worker's agent told of last."""
    query = select(_SEEN.leases).where(_SEEN.worker_id == worker_id, _SEEN.leases.is_not(None))
    told = writing.connection.execute(query).scalar_one_or_none()
    return frozenset() if told is None else LEASES.validate_json(told)


def states_of(writing: Writing, worker_id: str, leases: Iterable[str]) -> dict[str, str]:
    """Lease id → its state, of those that the worker ever held."""
    query = select(_LEASE.id, _LEASE.state).where(_LEASE.worker_id == worker_id)
    return {
        row.id: row.state
        for chunk in chunks(sorted(leases))
        for row in writing.connection.execute(query.where(_LEASE.id.in_(chunk)))
    }


def _server(connection: Connection) -> Row[tuple[int, datetime, datetime]] | None:
    return connection.execute(select(tables.server)).one_or_none()
