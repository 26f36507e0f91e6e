"""Writes events to the tables."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, delete, func, insert, select, update

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import TERMINAL
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import (
    LEASES,
    READINGS,
    REASON,
    REQUEST_COLUMNS,
    SERVED,
    TRANSITIONS,
    device_columns,
    digest,
    merged_transitions,
)
from hetero_airflow.store.inventory import DeviceRecord, merge_inventory
from hetero_airflow.store.sql.holds import HoldEvent, write_holds
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows
from hetero_airflow.store.sql.leases import claim_starts, end_requests
from hetero_airflow.store.sql.presence import (
    holds_all_leases,
    read_reported_leases,
    record_decision,
    record_server_heartbeat,
)
from hetero_airflow.store.sql.pruning import forget_workers
from hetero_airflow.store.sql.transaction import WriteTransaction, read_chunks
from hetero_airflow.store.sql.usage import note_presence
from hetero_airflow.store.store import (
    CheckpointSaved,
    RequestSubmitted,
    RequestWithdrawn,
    SchedulerDecided,
    ServerAlive,
    StartClaimed,
    StartDelayed,
    StoreEvent,
    TransitionsNoted,
    WorkerAlive,
    WorkerForgotten,
    WorkerLost,
    WorkerSeen,
)

_WORKER, _DEVICE, _REQUEST = tables.worker.c, tables.device.c, tables.request.c
_UPDATE_WORKER = update(tables.worker).where(_WORKER.id == bindparam("key"))
_IS_DEVICE = (_DEVICE.worker_id == bindparam("worker_key"), _DEVICE.id == bindparam("key"))
_UPDATE_DEVICE = update(tables.device).where(*_IS_DEVICE)
_DELETE_DEVICE = delete(tables.device).where(*_IS_DEVICE)
_HOLDER = tables.device.alias("holder")
_HOLD_BY_NEW_ID = (
    update(tables.device)
    .where(_DEVICE.worker_id == bindparam("key"), _DEVICE.used_milli > 0, _DEVICE.physical_id.is_not(None))
    .where(~select(_HOLDER.c.id).where(_HOLDER.c.held_id == _DEVICE.physical_id).exists())
    .values(held_id=_DEVICE.physical_id)
)
"""After a reboot: a worker keeps its leased devices, except those that another worker has leased since."""
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
    .values(reason=bindparam("reason_json"))
)
_STORIES = select(_REQUEST.id, tables.story.c.transitions).join_from(tables.request, tables.story, isouter=True)
_UPDATE_STORY = update(tables.story).where(tables.story.c.request_id == bindparam("key"))
_UPDATE_TELEMETRY = update(tables.telemetry).where(tables.telemetry.c.worker_id == bindparam("key"))


def record_events(transaction: WriteTransaction, events: Sequence[StoreEvent], now: datetime) -> None:
    """Write the events in order; those of one table at once."""
    workers = [event for event in events if isinstance(event, WorkerSeen | WorkerAlive | WorkerLost)]
    requests = [event for event in events if isinstance(event, RequestSubmitted | RequestWithdrawn)]
    for saved in (event for event in events if isinstance(event, CheckpointSaved)):
        key = {"key": saved.lease_id, "held": saved.token}
        values = {"saved_at": now, "changed": transaction.stamp}
        transaction.is_visible |= transaction.connection.execute(_SAVE.values(values), key).rowcount == 1
    claim_starts(transaction, [event for event in events if isinstance(event, StartClaimed)])
    for alive in (event for event in events if isinstance(event, ServerAlive)):
        record_server_heartbeat(transaction, now, is_new=alive.is_new)
    for decided in (event for event in events if isinstance(event, SchedulerDecided)):
        record_decision(transaction, decided)
    for delayed in (event for event in events if isinstance(event, StartDelayed)):
        reason = None if delayed.reason is None else REASON.dump_json(delayed.reason, exclude_none=True).decode()
        transaction.connection.execute(_DELAY, {"key": delayed.request_id, "reason_json": reason})
    if workers:
        _WorkerBatch(transaction, workers, now).write()
    forget_workers(transaction, [event for event in events if isinstance(event, WorkerForgotten)])
    if requests:
        _write_requests(transaction, requests, now)
    _note_transitions(transaction, [event for event in events if isinstance(event, TransitionsNoted)])
    write_holds(transaction, [event for event in events if isinstance(event, HoldEvent)])
    note_presence(transaction, transaction.changed_workers, now)


class _WorkerBatch:
    """Writes the events of workers. An inventory that has not changed costs one row of `hetero_telemetry`."""

    def __init__(
        self, transaction: WriteTransaction, events: Sequence[WorkerSeen | WorkerAlive | WorkerLost], now: datetime
    ) -> None:
        self._transaction, self._events, self._now = transaction, events, now
        ids = {event.worker.id if isinstance(event, WorkerSeen) else event.worker_id for event in events}
        query = select(_WORKER.id, _WORKER.state, _WORKER.digest, _WORKER.inventory)
        self._stored_workers: dict[str, tuple[str, str, str]] = {
            row.id: (row.state, row.digest, row.inventory)
            for row in read_chunks(transaction.connection, query, _WORKER.id, sorted(ids))
        }
        self._seen: dict[str, dict[str, Any]] = {}
        """Worker id → new values of columns of `hetero_telemetry`."""

    def write(self) -> None:
        """Write all events in order."""
        for event in self._events:
            if isinstance(event, WorkerSeen):
                self._see(event)
            elif isinstance(event, WorkerAlive):
                self._hear(event)
            else:
                self._lose(event.worker_id)
        by_columns: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
        for key, columns in self._seen.items():
            by_columns[tuple(sorted(columns))].append({"key": key} | columns)
        for rows in by_columns.values():
            self._transaction.execute_many(_UPDATE_TELEMETRY, rows)

    def _see(self, event: WorkerSeen) -> None:
        worker = event.worker
        reported = digest(worker.model_dump_json(exclude={"state"}))
        is_online = self._stored_workers.get(worker.id, ())[:1] == (WorkerState.ONLINE,)
        may_be_online = is_online or not event.leases or self._may_come_online(worker.id, event.leases)
        if may_be_online and not (is_online and self._stored_workers[worker.id][1] == reported):
            self._write_worker(worker, reported)
        if worker.id in self._stored_workers:
            self._note_seen(worker.id, event)

    def _may_come_online(self, worker_id: str, leases: frozenset[str]) -> bool:
        """Whether a worker may come online whose agent reports these leases; see `WorkerSeen`."""
        if not holds_all_leases(self._transaction, worker_id, leases):
            return False
        columns = self._seen.get(worker_id, {})
        if "leases" in columns:
            return leases <= LEASES.validate_json(columns["leases"] or "[]")
        return leases <= read_reported_leases(self._transaction, worker_id)

    def _hear(self, event: WorkerAlive) -> None:
        if self._stored_workers.get(event.worker_id, ())[:1] == (WorkerState.ONLINE,):
            self._note_seen(event.worker_id, event)

    def _note_seen(self, worker_id: str, event: WorkerSeen | WorkerAlive) -> None:
        columns = self._seen.setdefault(worker_id, {})
        columns["seen_at"] = self._now
        if event.telemetry:
            columns["readings"] = READINGS.dump_json(event.telemetry).decode()
        if event.leases is not None:
            columns["leases"] = LEASES.dump_json(event.leases).decode()
        if event.data is not None:
            columns["data"] = event.data.model_dump_json(exclude_defaults=True)

    def _write_worker(self, worker: Worker, reported: str) -> None:
        connection, stamp = self._transaction.connection, self._transaction.stamp
        inventory = worker.model_copy(update={"devices": (), "state": WorkerState.ONLINE}).model_dump_json()
        stored = self._stored_workers.get(worker.id)
        if stored is None:
            row = {"id": worker.id, "state": WorkerState.ONLINE, "inventory": inventory, "digest": reported}
            connection.execute(insert(tables.worker), row | {"changed": stamp})
            connection.execute(
                insert(tables.telemetry), {"worker_id": worker.id, "seen_at": self._now, "readings": "[]"}
            )
        has_changed = self._write_devices(worker)
        if stored is not None:
            values: dict[str, Any] = {"key": worker.id, "digest": reported}
            has_changed |= (stored[0], stored[2]) != (WorkerState.ONLINE, inventory)
            if has_changed:
                values |= {"state": WorkerState.ONLINE, "inventory": inventory, "changed": stamp}
            connection.execute(_UPDATE_WORKER, values)
        self._transaction.is_visible |= has_changed or stored is None
        self._transaction.changed_workers.add(worker.id)
        self._stored_workers[worker.id] = (WorkerState.ONLINE, reported, inventory)

    def _write_devices(self, worker: Worker) -> bool:
        connection, stamp = self._transaction.connection, self._transaction.stamp
        rows = connection.execute(
            select(tables.device).where(_DEVICE.worker_id == worker.id).order_by(_DEVICE.position)
        ).all()
        before = {
            row.id: DeviceRecord(
                Device.model_validate_json(row.inventory),
                row.used_milli,
                row.used_memory_bytes,
                row.last_granted_at,
                row.is_vanished,
                row.physical_id,
                row.reported_since,
            )
            for row in rows
        }
        last_seen = select(tables.telemetry.c.seen_at).where(tables.telemetry.c.worker_id == worker.id)
        after = merge_inventory(before, worker, connection.execute(last_seen).scalar_one(), self._now)
        stored = {row.id: device_columns(before[row.id], row.position) for row in rows}
        wanted = {key: device_columns(record, position) for position, (key, record) in enumerate(after.items())}
        new = [
            {"worker_id": worker.id, "id": key, "last_granted_at": None, "changed": stamp, **columns}
            for key, columns in wanted.items()
            if key not in stored
        ]
        changed = [
            {"worker_key": worker.id, "key": key, "changed": stamp, **columns}
            for key, columns in wanted.items()
            if key in stored and stored[key] != columns
        ]
        missing_devices = [{"worker_key": worker.id, "key": key} for key in stored if key not in wanted]
        self._transaction.execute_many(_DELETE_DEVICE, missing_devices)
        self._transaction.execute_many(_UPDATE_DEVICE, changed)
        self._transaction.execute_many(insert(tables.device), new)
        if any(row.used_milli and row.held_id != wanted[row.id]["physical_id"] for row in rows if row.id in wanted):
            connection.execute(_HOLD_BY_NEW_ID, {"key": worker.id})
        return bool(new or changed or missing_devices)

    def _lose(self, worker_id: str) -> None:
        stored = self._stored_workers.get(worker_id)
        if stored is not None and stored[0] != WorkerState.LOST:
            values = {"key": worker_id, "state": WorkerState.LOST, "changed": self._transaction.stamp}
            self._transaction.connection.execute(_UPDATE_WORKER, values)
            self._stored_workers[worker_id] = (WorkerState.LOST, stored[1], stored[2])
            self._seen.setdefault(worker_id, {})["leases"] = None
            self._transaction.is_visible = True
            self._transaction.changed_workers.add(worker_id)


def _write_requests(
    transaction: WriteTransaction, events: Sequence[RequestSubmitted | RequestWithdrawn], now: datetime
) -> None:
    ids = {event.request_id for event in events}
    stored = {row.id: row for row in read_by_rows(transaction.connection, _states, key_rows(ids))}
    states: dict[str, str] = {key: row.state for key, row in stored.items()}
    since = {key: now if row.was_held else row.resubmitted_at for key, row in stored.items()}
    rows: dict[str, dict[str, Any]] = {}
    causes: dict[str, str] = {}
    for event in events:
        state = states.get(event.request_id, "ended")
        if isinstance(event, RequestSubmitted) and state == "ended":
            rows[event.request_id] = _request_columns(event.pending) | {"changed": transaction.stamp}
            states[event.request_id] = "waiting"
        elif isinstance(event, RequestWithdrawn) and state == "waiting":
            causes[event.request_id] = event.cause
            states[event.request_id] = "ended"
    transaction.insert_rows(tables.request, [{"id": key} | row for key, row in rows.items() if key not in stored])
    resubmitted = [
        {"key": key, "is_paused": False, "resubmitted_at": since[key]} | rows[key] for key in rows if key in stored
    ]
    transaction.execute_many(_UPDATE_REQUEST, resubmitted)
    ended = {key: cause for key, cause in causes.items() if states[key] == "ended"}
    end_requests(transaction, ended, "waiting", now)
    transaction.is_visible |= bool(rows)


def _note_transitions(transaction: WriteTransaction, events: Sequence[TransitionsNoted]) -> None:
    newer = {event.request_id: event.transitions for event in events}
    new, changed = [], []
    for row in read_chunks(transaction.connection, _STORIES, _REQUEST.id, sorted(newer)):
        known = () if row.transitions is None else TRANSITIONS.validate_json(row.transitions)
        transitions = TRANSITIONS.dump_json(merged_transitions(known, newer[row.id])).decode()
        if row.transitions is None:
            new.append({"request_id": row.id, "transitions": transitions})
        else:
            changed.append({"key": row.id, "transitions": transitions})
    transaction.insert_rows(tables.story, new)
    transaction.execute_many(_UPDATE_STORY, changed)


@lru_cache(maxsize=2)
def _states(dialect: str) -> Select[Any]:
    keys = json_table(dialect, key="text")
    ended_it = (tables.lease.c.request_id == _REQUEST.id) & (tables.lease.c.ended_at == _REQUEST.ended_at)
    was_held = select(tables.lease.c.id).where(ended_it).correlate(tables.request).exists().label("was_held")
    query = select(_REQUEST.id, _REQUEST.state, _REQUEST.resubmitted_at, was_held)
    return query.join_from(keys, tables.request, _REQUEST.id == keys.c.key)


def _request_columns(pending: PendingRequest) -> dict[str, Any]:
    return {
        **{name: getattr(pending, name) for name in REQUEST_COLUMNS},
        "request": pending.request.model_dump_json(exclude_defaults=True),
        "served": SERVED.dump_json(dict(pending.attained_service_s)).decode(),
        "gang": pending.gang or None,
        "state": "waiting",
        "ended_at": None,
        "cause": "",
        "newest_decision": None,
    }
