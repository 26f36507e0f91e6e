"""What happened to workers and requests, written to the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, Select, bindparam, delete, func, insert, select, update

from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import LEASES, READINGS, REASON, SERVED, clean_cause, digest
from hetero_airflow.store.inventory import DeviceRecord, merge_inventory
from hetero_airflow.store.sql.holds import HoldEvent, write_holds
from hetero_airflow.store.sql.json_rows import json_table, key_rows
from hetero_airflow.store.sql.presence import holds_all_leases, read_reported_leases, record_server_heartbeat
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks
from hetero_airflow.store.store import (
    CheckpointSaved,
    RequestSubmitted,
    RequestWithdrawn,
    ServerAlive,
    StartDelayed,
    StoreEvent,
    WorkerAlive,
    WorkerLost,
    WorkerSeen,
)

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c
_UPDATE_WORKER = update(tables.worker).where(_WORKER.id == bindparam("key"))
_UPDATE_DEVICE = update(tables.device).where(
    _DEVICE.worker_id == bindparam("worker_key"), _DEVICE.id == bindparam("key")
)
_DELETE_DEVICE = delete(tables.device).where(
    _DEVICE.worker_id == bindparam("worker_key"), _DEVICE.id == bindparam("key")
)
_UPDATE_REQUEST = update(tables.request).where(_REQUEST.id == bindparam("key"))
_SAVE = update(tables.lease).where(
    tables.lease.c.id == bindparam("key"),
    tables.lease.c.token == bindparam("held"),
    tables.lease.c.state.not_in(TERMINAL),
)
_DELAY = (
    update(tables.decision)
    .where(
        tables.decision.c.id
        == select(func.max(tables.decision.c.id))
        .where(tables.decision.c.request_id == bindparam("key"))
        .scalar_subquery(),
        tables.decision.c.outcome == "place",
    )
    .values(reason=bindparam("told"))
)
_UPDATE_TELEMETRY = update(tables.telemetry).where(tables.telemetry.c.worker_id == bindparam("key"))


def record_events(writing: WriteTransaction, events: Sequence[StoreEvent], now: datetime) -> None:
    """Write the events, in order; those of one table at once."""
    workers = [event for event in events if isinstance(event, WorkerSeen | WorkerAlive | WorkerLost)]
    requests = [event for event in events if isinstance(event, RequestSubmitted | RequestWithdrawn)]
    for saved in (event for event in events if isinstance(event, CheckpointSaved)):
        key = {"key": saved.lease_id, "held": saved.token}
        values = {"saved_at": now, "changed": writing.stamp}
        writing.is_visible |= writing.connection.execute(_SAVE.values(values), key).rowcount == 1
    for alive in (event for event in events if isinstance(event, ServerAlive)):
        record_server_heartbeat(writing, now, is_new=alive.is_new)
    for delayed in (event for event in events if isinstance(event, StartDelayed)):
        reason = None if delayed.reason is None else REASON.dump_json(delayed.reason, exclude_none=True).decode()
        writing.connection.execute(_DELAY, {"key": delayed.request_id, "told": reason})
    if workers:
        _WorkerBatch(writing, workers, now).write()
    if requests:
        _write_requests(writing, requests, now)
    write_holds(writing, [event for event in events if isinstance(event, HoldEvent)])


class _WorkerBatch:
    """One batch of workers that were seen, heard of or lost.

    A worker that reports the same inventory as before costs one row of `hetero_telemetry`.
    """

    def __init__(
        self, writing: WriteTransaction, events: Sequence[WorkerSeen | WorkerAlive | WorkerLost], now: datetime
    ) -> None:
        self._writing, self._events, self._now = writing, events, now
        ids = {event.worker.id if isinstance(event, WorkerSeen) else event.worker_id for event in events}
        query = select(_WORKER.id, _WORKER.state, _WORKER.digest, _WORKER.inventory)
        self._known: dict[str, tuple[str, str, str]] = {
            row.id: (row.state, row.digest, row.inventory)
            for chunk in chunks(sorted(ids))
            for row in writing.connection.execute(query.where(_WORKER.id.in_(chunk)))
        }
        self._seen: dict[str, dict[str, Any]] = {}
        """Worker id → columns of `hetero_telemetry` and what they become."""

    def write(self) -> None:
        """All of them, in order."""
        for event in self._events:
            if isinstance(event, WorkerSeen):
                self._see(event)
            elif isinstance(event, WorkerAlive):
                self._hear(event)
            else:
                self._lose(event.worker_id)
        alike: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
        for key, columns in self._seen.items():
            alike[tuple(sorted(columns))].append({"key": key} | columns)
        for rows in alike.values():
            self._writing.execute_many(_UPDATE_TELEMETRY, rows)

    def _see(self, event: WorkerSeen) -> None:
        worker = event.worker
        reported = digest(worker.model_dump_json(exclude={"state"}))
        is_online = self._known.get(worker.id, ())[:1] == (WorkerState.ONLINE,)
        may_be = is_online or not event.leases or self._may_come(worker.id, event.leases)
        if may_be and not (is_online and self._known[worker.id][1] == reported):
            self._take(worker, reported)
        if worker.id in self._known:
            self._note_seen(worker.id, event.telemetry, event.leases)

    def _may_come(self, worker_id: str, leases: frozenset[str]) -> bool:
        """Whether a worker that is not online may be, whose agent tells of these leases; see `WorkerSeen`."""
        if not holds_all_leases(self._writing, worker_id, leases):
            return False
        told = self._seen.get(worker_id, {}).get("leases", ...)
        before = read_reported_leases(self._writing, worker_id) if told is ... else LEASES.validate_json(told or "[]")
        return leases <= before

    def _hear(self, event: WorkerAlive) -> None:
        if self._known.get(event.worker_id, ())[:1] == (WorkerState.ONLINE,):
            self._note_seen(event.worker_id, event.telemetry, event.leases)

    def _note_seen(self, worker_id: str, telemetry: tuple[Telemetry, ...], leases: frozenset[str] | None) -> None:
        columns = self._seen.setdefault(worker_id, {})
        columns["seen_at"] = self._now
        if telemetry:
            columns["readings"] = READINGS.dump_json(telemetry).decode()
        if leases is not None:
            columns["leases"] = LEASES.dump_json(leases).decode()

    def _take(self, worker: Worker, reported: str) -> None:
        connection, stamp = self._writing.connection, self._writing.stamp
        head = worker.model_copy(update={"devices": (), "state": WorkerState.ONLINE}).model_dump_json()
        known = self._known.get(worker.id)
        if known is None:
            row = {"id": worker.id, "state": WorkerState.ONLINE, "inventory": head, "digest": reported}
            connection.execute(insert(tables.worker), row | {"changed": stamp})
            connection.execute(
                insert(tables.telemetry), {"worker_id": worker.id, "seen_at": self._now, "readings": "[]"}
            )
        has_changed = self._write_devices(worker)
        if known is not None:
            values: dict[str, Any] = {"key": worker.id, "digest": reported}
            has_changed |= (known[0], known[2]) != (WorkerState.ONLINE, head)
            if has_changed:
                values |= {"state": WorkerState.ONLINE, "inventory": head, "changed": stamp}
            connection.execute(_UPDATE_WORKER, values)
        self._writing.is_visible |= has_changed or known is None
        self._known[worker.id] = (WorkerState.ONLINE, reported, head)

    def _write_devices(self, worker: Worker) -> bool:
        connection, stamp = self._writing.connection, self._writing.stamp
        rows = connection.execute(
            select(tables.device).where(_DEVICE.worker_id == worker.id).order_by(_DEVICE.position)
        ).all()
        before = {row.id: device_record(row) for row in rows}
        after = merge_inventory(before, worker, self._last_seen(worker.id))
        known = {row.id: _device_columns(before[row.id], row.position) for row in rows}
        wanted = {key: _device_columns(record, position) for position, (key, record) in enumerate(after.items())}
        new = [
            {"worker_id": worker.id, "id": key, "last_granted_at": None, "changed": stamp, **columns}
            for key, columns in wanted.items()
            if key not in known
        ]
        changed = [
            {"worker_key": worker.id, "key": key, "changed": stamp, **columns}
            for key, columns in wanted.items()
            if key in known and known[key] != columns
        ]
        gone = [{"worker_key": worker.id, "key": key} for key in known if key not in wanted]
        self._writing.execute_many(_DELETE_DEVICE, gone)
        self._writing.execute_many(_UPDATE_DEVICE, changed)
        self._writing.execute_many(insert(tables.device), new)
        return bool(new or changed or gone)

    def _last_seen(self, worker_id: str) -> datetime:
        column = tables.telemetry.c.seen_at
        query = select(column).where(tables.telemetry.c.worker_id == worker_id)
        seen_at: datetime = self._writing.connection.execute(query).scalar_one()
        return seen_at

    def _lose(self, worker_id: str) -> None:
        known = self._known.get(worker_id)
        if known is not None and known[0] != WorkerState.LOST:
            values = {"key": worker_id, "state": WorkerState.LOST, "changed": self._writing.stamp}
            self._writing.connection.execute(_UPDATE_WORKER, values)
            self._known[worker_id] = (WorkerState.LOST, known[1], known[2])
            self._seen.setdefault(worker_id, {})["leases"] = None
            self._writing.is_visible = True


def device_record(row: Row[*tuple[Any, ...]]) -> DeviceRecord:
    """The record that a whole row of `hetero_device` holds."""
    return DeviceRecord(
        Device.model_validate_json(row.inventory),
        row.used_milli,
        row.used_memory_bytes,
        row.last_granted_at,
        row.is_vanished,
    )


def _device_columns(record: DeviceRecord, position: int) -> dict[str, Any]:
    return {
        "position": position,
        "inventory": record.device.model_dump_json(exclude_defaults=True),
        "kind": record.device.kind,
        "leasable": record.device.leasable,
        "is_vanished": record.is_vanished,
        "offered_milli": record.device.capacity_milli,
        "offered_memory_bytes": record.offered_memory_bytes,
        "capacity_milli": record.capacity_milli,
        "capacity_memory_bytes": record.capacity_memory_bytes,
        "used_milli": record.used_milli,
        "used_memory_bytes": record.used_memory_bytes,
    }


def _write_requests(
    writing: WriteTransaction, events: Sequence[RequestSubmitted | RequestWithdrawn], now: datetime
) -> None:
    ids = {event.request_id for event in events}
    known = writing.read_by_rows(_states(writing.dialect), key_rows(ids))
    states: dict[str, str] = {row.id: row.state for row in known}
    stored = frozenset(states)
    rows: dict[str, dict[str, Any]] = {}
    endings: dict[str, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, RequestSubmitted):
            pending = event.pending
            if states.get(pending.id, "ended") == "ended":
                rows[pending.id] = _request_columns(pending) | {"changed": writing.stamp}
                states[pending.id] = "waiting"
        elif states.get(event.request_id) == "waiting":
            ending = request_ending(event.cause, now, writing.stamp)
            rows.get(event.request_id, endings.setdefault(event.request_id, {})).update(ending)
            states[event.request_id] = "ended"
    writing.insert_rows(tables.request, [{"id": key} | row for key, row in rows.items() if key not in stored])
    writing.execute_many(_UPDATE_REQUEST, [{"key": key} | row for key, row in rows.items() if key in stored])
    endings = {key: row for key, row in endings.items() if key not in rows}
    writing.execute_many(_UPDATE_REQUEST, [{"key": key} | row for key, row in endings.items()])
    writing.is_visible |= bool(rows or endings)


@lru_cache(maxsize=2)
def _states(dialect: str) -> Select[Any]:
    asked = json_table(dialect, key="text")
    return select(_REQUEST.id, _REQUEST.state).join_from(asked, tables.request, _REQUEST.id == asked.c.key)


def request_ending(cause: str, now: datetime, stamp: int) -> Mapping[str, Any]:
    """The columns of a request that ends."""
    return {"state": "ended", "ended_at": now, "cause": clean_cause(cause), "changed": stamp}


def _request_columns(pending: PendingRequest) -> dict[str, Any]:
    return {
        "dag_id": pending.dag_id,
        "run_id": pending.run_id,
        "task_id": pending.task_id,
        "map_index": pending.map_index,
        "try_number": pending.try_number,
        "request": pending.request.model_dump_json(exclude_defaults=True),
        "weight": pending.weight,
        "submitted_at": pending.submitted_at,
        "served": SERVED.dump_json(dict(pending.attained_service_s)).decode(),
        "gang": pending.gang or None,
        "gang_size": pending.gang_size,
        "state": "waiting",
        "ended_at": None,
        "cause": "",
        "newest_decision": None,
    }
