"""Deletes what is old: ended requests, lost workers, and what is kept of workers that are not known any more."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Delete, and_, delete, func, or_, select, update

from hetero_airflow.errors import StoreError, shorten
from hetero_airflow.model.devices.health import last_change
from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.holds import HEALTH
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks
from hetero_airflow.store.sql.usage import add_sums
from hetero_airflow.store.store import WorkerForgotten

_WORKER, _SEEN, _LEASE = tables.worker.c, tables.telemetry.c, tables.lease.c
_REQUEST, _DECISION = tables.request.c, tables.decision.c
_HOLD, _HEALTH, _KEY = tables.hold.c, tables.health.c, tables.worker_key.c

_UNUSED_KEY = timedelta(days=365)
"""A key that was not used for so much longer than the history is deleted. Some hosts only start at peak load."""

_KEPT_TABLES = (tables.worker_key, tables.hold, tables.health)
"""What outlives a worker."""


def forget_workers(transaction: WriteTransaction, events: Sequence[WorkerForgotten]) -> None:
    """Delete the workers of those events that apply; see `WorkerForgotten`."""
    by_time: dict[datetime, list[str]] = {}
    for event in events:
        by_time.setdefault(event.before, []).append(event.worker_id)
    for before, worker_ids in by_time.items():
        for chunk in chunks(worker_ids):
            _delete_workers(transaction, _read_unused(transaction.connection, chunk, before))


def forget_by_name(transaction: WriteTransaction, worker_id: str, before: datetime) -> bool:
    """Delete everything about a worker: also its key, its holds and its error records. Whether the worker was known.

    :param before: the worker must not have been seen since then, and must have held no lease since then
    :raises StoreError: there is no such worker, or it is still in use
    """
    connection = transaction.connection
    worker = connection.execute(select(_WORKER.state).where(_WORKER.id == worker_id)).one_or_none()
    if worker is not None:
        _check_unused(connection, worker_id, worker.state, before)
        _delete_workers(transaction, [worker_id])
    deletions = [table.delete().where(table.c.worker_id == worker_id) for table in _KEPT_TABLES]
    deleted = sum(connection.execute(statement).rowcount for statement in deletions)
    if worker is None and not deleted:
        raise _refusal(worker_id, "no such worker", "`airflow hetero workers` lists the known workers")
    return worker is not None


def _check_unused(connection: Connection, worker_id: str, state: str, before: datetime) -> None:
    used = select(_LEASE.id).where(_LEASE.worker_id == worker_id)
    live = list(connection.execute(used.where(_LEASE.state.not_in(TERMINAL)).order_by(_LEASE.id)).scalars())
    if state != WorkerState.LOST:
        found, remedy = "that it is online", "Stop its agent, or the scheduler on it, and wait until the worker is lost"
    elif live:
        names = ", ".join(map(shorten, live[:3]))
        found = f"that it holds these leases: {names}" + ("" if len(live) <= 3 else f", and {len(live) - 3} more")
        remedy = "Wait until its tasks are over; `airflow hetero queue` lists them"
    elif not _read_unused(connection, [worker_id], before):
        found = f"that it was seen, or held a lease, after {before:%H:%M:%S} UTC"
        remedy = "Stop its agent if that still runs, and try again in a minute"
    else:
        return
    raise _refusal(worker_id, found, remedy)


def _refusal(worker_id: str, found: str, remedy: str) -> StoreError:
    return StoreError(f"to forget worker {shorten(worker_id)}", found=found, remedy=remedy)


def _read_unused(connection: Connection, worker_ids: Sequence[str], before: datetime) -> list[str]:
    """Those of the workers that are lost, were not seen since this time, and held no lease since then."""
    used = select(_LEASE.worker_id).where(
        _LEASE.worker_id.in_(worker_ids), or_(_LEASE.state.not_in(TERMINAL), _LEASE.ended_at >= before)
    )
    recently_seen = select(_SEEN.worker_id).where(_SEEN.worker_id.in_(worker_ids), _SEEN.seen_at >= before)
    busy = {*connection.execute(used).scalars(), *connection.execute(recently_seen).scalars()}
    lost = select(_WORKER.id).where(_WORKER.id.in_(worker_ids), _WORKER.state == WorkerState.LOST)
    return [worker_id for worker_id in connection.execute(lost).scalars() if worker_id not in busy]


def _delete_workers(transaction: WriteTransaction, worker_ids: Sequence[str]) -> None:
    if not worker_ids:
        return
    for statement in (
        delete(tables.device).where(tables.device.c.worker_id.in_(worker_ids)),
        delete(tables.telemetry).where(_SEEN.worker_id.in_(worker_ids)),
        delete(tables.worker).where(_WORKER.id.in_(worker_ids)),
    ):
        transaction.connection.execute(statement)
    transaction.note_deletion()


def prune(transaction: WriteTransaction, before: datetime) -> int:
    """Delete what is older than this; see `SqlStore.prune`. Returns the number of deleted requests."""
    connection = transaction.connection
    add_sums(transaction, before)
    _prune_decisions(connection)
    old = _prune_requests(connection, before)
    if old:
        connection.execute(update(tables.state).values(pruned=tables.state.c.sequence))
    live_dags = select(_REQUEST.dag_id).where(_REQUEST.dag_id == tables.dag.c.dag_id)
    if connection.execute(delete(tables.dag).where(~live_dags.exists())).rowcount:
        transaction.note_deletion()
    _prune_absent_workers(connection, before)
    connection.execute(delete(tables.speed).where(tables.speed.c.measured_at < before))
    return old


def _prune_decisions(connection: Connection) -> None:
    """Delete the decisions on waiting requests except the newest."""
    newest = (
        select(func.max(_DECISION.id))
        .join(tables.request, _REQUEST.id == _DECISION.request_id)
        .where(_REQUEST.state == "waiting")
        .group_by(_DECISION.request_id)
    )
    waiting = select(_REQUEST.id).where(_REQUEST.state == "waiting")
    connection.execute(delete(tables.decision).where(_DECISION.request_id.in_(waiting), _DECISION.id.not_in(newest)))


def _prune_requests(connection: Connection, before: datetime) -> int:
    ended = select(_REQUEST.id).where(_REQUEST.state == "ended", _REQUEST.ended_at < before)
    old = list(connection.execute(ended).scalars())
    for ids in chunks(old):
        leases = select(_LEASE.id).where(_LEASE.request_id.in_(ids))
        connection.execute(delete(tables.lease_device).where(tables.lease_device.c.lease_id.in_(leases)))
        connection.execute(delete(tables.lease).where(_LEASE.request_id.in_(ids)))
        connection.execute(delete(tables.decision).where(_DECISION.request_id.in_(ids)))
        connection.execute(delete(tables.story).where(tables.story.c.request_id.in_(ids)))
        connection.execute(delete(tables.request).where(_REQUEST.id.in_(ids)))
    return len(old)


def _prune_absent_workers(connection: Connection, before: datetime) -> None:
    """Delete old holds, error records and keys of workers that are not known."""
    connection.execute(delete(tables.hold).where(_is_absent(_HOLD.worker_id), _HOLD.since < before))
    records = connection.execute(select(tables.health).where(_is_absent(_HEALTH.worker_id))).all()
    for row in records:
        if last_change(HEALTH.validate_json(row.record), before) < before:
            is_device = (_HEALTH.worker_id == row.worker_id, _HEALTH.device_id == row.device_id)
            connection.execute(delete(tables.health).where(*is_device))
    connection.execute(_delete_unused_keys(before))


def _is_absent(worker_id: ColumnElement[str]) -> ColumnElement[bool]:
    return ~select(_WORKER.id).where(_WORKER.id == worker_id).exists()


def _delete_unused_keys(before: datetime) -> Delete:
    """The keys that were revoked before this time, the secrets that expired before it, and keys that are not used.

    An agent's nonces are its clock in microseconds, so the newest nonce is the time of the last message.
    """
    long_before = before - _UNUSED_KEY
    is_unused = and_(_KEY.enrolled_at < long_before, _KEY.nonce < int(long_before.timestamp() * 1_000_000))
    is_unclaimed = and_(_KEY.public_key.is_(None), _KEY.secret_until < before)
    is_old = or_(_KEY.revoked_at < before, is_unused, is_unclaimed)
    return delete(tables.worker_key).where(_is_absent(_KEY.worker_id), is_old)
