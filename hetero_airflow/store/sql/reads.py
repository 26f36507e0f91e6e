"""Reads the changes since the last snapshot, the history of requests, and ended runs."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Row, Select, select

from hetero_airflow.errors import shorten
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import TERMINAL, Claim, Lease
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import EndedRun, RunEnd, ServiceRecord
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES, REQUEST_COLUMNS, SERVED, TRANSITIONS, decision_json
from hetero_airflow.store.inventory import worker_with_devices
from hetero_airflow.store.lease_rules import leased_device_class
from hetero_airflow.store.snapshot_builder import SnapshotBuilder
from hetero_airflow.store.sql.holds import read_holds
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows
from hetero_airflow.store.sql.transaction import read_chunks
from hetero_airflow.store.store import MAX_RUNS, RequestHistory
from hetero_airflow.validation import first_problem

_log = logging.getLogger(__name__)

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c
_LEASE, _HELD, _DECISION = tables.lease.c, tables.lease_device.c, tables.decision.c

ReadRequest = Callable[[str], DeviceRequest]
"""Reads a request from JSON; equal texts may give the same object."""


def apply_changes(connection: Connection, builder: SnapshotBuilder, since: int, read_request: ReadRequest) -> None:
    """Write into the builder what changed after this sequence; from 0, everything live.

    May be called again with the same sequence, so an exception halfway does no harm.
    """
    _apply_workers(connection, builder, since)
    if since:
        _apply_usage(connection, builder, since)
    _apply_requests(connection, builder, since, read_request)
    for row in connection.execute(select(tables.dag).where(tables.dag.c.changed > since)):
        builder.dag_tokens.put(row.dag_id, row.token)
    has_changed = _LEASE.changed > since if since else _LEASE.state.not_in(TERMINAL)
    for lease in read_leases(connection, has_changed):
        if lease.state in TERMINAL:
            builder.leases.drop(lease.id)
        else:
            builder.leases.put(lease.id, lease)


def drop_deleted(connection: Connection, builder: SnapshotBuilder) -> None:
    """Remove from the builder what the tables do not have any more, which no `changed` tells."""
    ids = (
        select(_WORKER.id),
        select(_REQUEST.id).where(_REQUEST.state != "ended"),
        select(_LEASE.id).where(_LEASE.state.not_in(TERMINAL)),
        select(tables.dag.c.dag_id),
    )
    workers, requests, leases, dags = (frozenset(connection.execute(query).scalars()) for query in ids)
    builder.keep_only(workers, requests, leases, dags)


def _apply_usage(connection: Connection, builder: SnapshotBuilder, since: int) -> None:
    usage: defaultdict[str, dict[str, DeviceUsage]] = defaultdict(dict)
    columns = (_DEVICE.worker_id, _DEVICE.id, _DEVICE.used_milli, _DEVICE.used_memory_bytes, _DEVICE.last_granted_at)
    for row in connection.execute(select(*columns).where(_DEVICE.changed > since)):
        usage[row.worker_id][row.id] = DeviceUsage(row.used_milli, row.used_memory_bytes, row.last_granted_at)
    for worker_id, changed in usage.items():
        builder.put_usage(worker_id, changed)


def _apply_requests(connection: Connection, builder: SnapshotBuilder, since: int, read_request: ReadRequest) -> None:
    has_changed = _REQUEST.changed > since if since else _REQUEST.state != "ended"
    for row in connection.execute(select(tables.request).where(has_changed)):
        pending = read_pending(row, read_request) if row.state != "ended" else None
        if pending is not None and row.state == "waiting":
            builder.holders.drop(row.id)
            builder.put_pending(pending)
        elif pending is not None:
            builder.put_holder(pending)
        else:
            builder.pending.drop(row.id)
            builder.holders.drop(row.id)


def _apply_workers(connection: Connection, builder: SnapshotBuilder, since: int) -> None:
    workers = {row.id: row for row in connection.execute(select(tables.worker).where(_WORKER.changed > since))}
    query = select(tables.device).order_by(_DEVICE.worker_id, _DEVICE.position)
    devices: defaultdict[str, list[Row[*tuple[Any, ...]]]] = defaultdict(list)
    for row in read_chunks(connection, query, _DEVICE.worker_id, workers):
        devices[row.worker_id].append(row)
    holds = read_holds(connection, workers)
    for worker_id, row in workers.items():
        try:
            worker = Worker.model_validate_json(row.inventory)
            inventories = tuple(Device.model_validate_json(part.inventory) for part in devices[worker_id])
        except ValidationError as error:
            log_unreadable("worker", worker_id, error)
            continue
        shown = worker_with_devices(worker, inventories, WorkerState(row.state))
        reported_since = {part.id: part.reported_since for part in devices[worker_id]}
        builder.put_worker(shown, holds.get(worker_id, ()), reported_since)
        usage = {
            part.id: DeviceUsage(part.used_milli, part.used_memory_bytes, part.last_granted_at)
            for part in devices[worker_id]
        }
        builder.put_usage(worker_id, usage, replace=True)


def read_pending(row: Row[*tuple[Any, ...]], read_request: ReadRequest) -> PendingRequest | None:
    """The request of a whole row of `hetero_request`; None if its JSON can't be read, which is logged."""
    try:
        request, attained_service_s = read_request(row.request), SERVED.validate_json(row.served)
    except ValidationError as error:
        log_unreadable("request", row.id, error)
        return None
    return PendingRequest(
        id=row.id,
        request=request,
        attained_service_s=attained_service_s,
        gang=row.gang or "",
        is_paused=row.is_paused,
        **{name: getattr(row, name) for name in REQUEST_COLUMNS},
    )


def log_unreadable(row_kind: str, key: str, error: ValidationError) -> None:
    """Log that a row is left out. One unreadable row must not stop the scheduling of all others."""
    _log.error(
        "The JSON of %s %s can't be read, so it is left out of scheduling; found %s. "
        "Run one version of hetero-airflow everywhere, and end or report the %s again.",
        row_kind,
        shorten(key),
        " at ".join(reversed([part for part in first_problem(error) if part])),
        row_kind,
    )


def read_leases(
    connection: Connection, condition: ColumnElement[bool], parameters: Mapping[str, Any] | None = None
) -> list[Lease]:
    """The leases that meet the condition, ordered by token."""
    columns = [_LEASE[name] for name in Lease.model_fields if name != "claims"]
    rows = connection.execute(select(*columns).where(condition).order_by(_LEASE.token), parameters).all()
    claims = _read_claims(connection, (row.id for row in rows))
    return [Lease(**row._asdict(), claims=tuple(claims[row.id])) for row in rows]


def _read_claims(connection: Connection, lease_ids: Iterable[str]) -> Mapping[str, list[Claim]]:
    claims: defaultdict[str, list[Claim]] = defaultdict(list)
    for row in read_by_rows(connection, _claims, key_rows(lease_ids)):
        cores = CORES.validate_json(row.cores)
        claims[row.lease_id].append(Claim(row.device_id, row.milli, row.memory_bytes, cores))
    return claims


@lru_cache(maxsize=2)
def _claims(dialect: str) -> Select[Any]:
    leases = json_table(dialect, key="text")
    parts = select(tables.lease_device).join_from(leases, tables.lease_device, _HELD.lease_id == leases.c.key)
    return parts.order_by(_HELD.lease_id, _HELD.position)


def read_request_history(
    connection: Connection, instance: tuple[str, str, str, int], read_request: ReadRequest
) -> RequestHistory | None:
    """The newest request of a task instance, given as (dag, run, task, map index)."""
    columns = (_REQUEST.dag_id, _REQUEST.run_id, _REQUEST.task_id, _REQUEST.map_index)
    is_instance = [column == value for column, value in zip(columns, instance, strict=True)]
    order = (_REQUEST.submitted_at.desc(), _REQUEST.try_number.desc(), _REQUEST.id.desc())
    row = connection.execute(select(tables.request).where(*is_instance).order_by(*order).limit(1)).one_or_none()
    pending = None if row is None else read_pending(row, read_request)
    if row is None or pending is None:
        return None
    leases = read_leases(connection, _LEASE.request_id == row.id)
    newest_first = select(tables.decision).where(_DECISION.request_id == row.id).order_by(_DECISION.id.desc())
    decisions = [decision_json(d._asdict(), d.decided_at) for d in connection.execute(newest_first)]
    story = select(tables.story.c.transitions).where(tables.story.c.request_id == row.id)
    transitions = TRANSITIONS.validate_json(connection.execute(story).scalar() or "[]")
    return RequestHistory(pending, row.state, row.ended_at, row.cause, tuple(leases), tuple(decisions), transitions)


def read_runs(connection: Connection, since: int, read_request: ReadRequest) -> tuple[EndedRun, ...]:
    """The newest `MAX_RUNS` leases that ended after this sequence in a known way."""
    newest_first = (_LEASE.changed.desc(), _LEASE.token.desc())
    rows = connection.execute(_ENDED.where(_LEASE.changed > since).order_by(*newest_first).limit(MAX_RUNS)).all()
    return _runs_of(connection, rows[::-1], read_request)


def read_service(
    connection: Connection, request_ids: Iterable[str], read_request: ReadRequest
) -> dict[str, ServiceRecord]:
    """Request id → what it has had under its leases, for those of the requests that had one which is over."""
    rows = list(read_chunks(connection, _OVER, _LEASE.request_id, sorted(request_ids)))
    runs: defaultdict[str, list[EndedRun]] = defaultdict(list)
    for run in _runs_of(connection, [row for row in rows if row.outcome is not None], read_request):
        runs[run.request_id].append(run)
    return {row.request_id: ServiceRecord.of(row.submitted_at, runs[row.request_id]) for row in rows}


_OVER = (
    select(
        *(_LEASE.id, _LEASE.worker_id, _LEASE.changed, _LEASE.granted_at, _LEASE.ended_at, _LEASE.outcome),
        *(_LEASE.request_id, _REQUEST.dag_id, _REQUEST.task_id, _REQUEST.request, _REQUEST.served),
        _REQUEST.submitted_at,
    )
    .join(tables.request, _REQUEST.id == _LEASE.request_id)
    .where(_LEASE.ended_at.is_not(None))
)
_ENDED = _OVER.where(_LEASE.outcome.in_([*RunEnd]))


def _runs_of(connection: Connection, rows: Sequence[Any], read_request: ReadRequest) -> tuple[EndedRun, ...]:
    """The runs of these leases, in the same order, without those of devices that are no longer known."""
    claims = _read_claims(connection, (row.id for row in rows))
    devices = _read_devices(connection, {row.worker_id for row in rows})
    runs = []
    for row in rows:
        leased = leased_device_class(claims[row.id], devices[row.worker_id])
        if leased is None:
            continue
        try:
            alternative, attained_service_s = (
                read_request(row.request).alternatives[0],
                SERVED.validate_json(row.served),
            )
        except ValidationError as error:
            log_unreadable("request", row.request_id, error)
            continue
        held_s = (row.ended_at - row.granted_at).total_seconds()
        task, end = (row.dag_id, row.task_id), RunEnd(row.outcome)
        runs.append(
            EndedRun(
                row.changed, row.request_id, task, alternative, *leased, held_s, end, row.ended_at, attained_service_s
            )
        )
    return tuple(runs)


def _read_devices(connection: Connection, worker_ids: Iterable[str]) -> Mapping[str, dict[str, Device]]:
    query = select(_DEVICE.worker_id, _DEVICE.id, _DEVICE.inventory)
    devices: defaultdict[str, dict[str, Device]] = defaultdict(dict)
    for row in read_chunks(connection, query, _DEVICE.worker_id, sorted(worker_ids)):
        try:
            devices[row.worker_id][row.id] = Device.model_validate_json(row.inventory)
        except ValidationError as error:
            log_unreadable("device", row.id, error)
    return devices
