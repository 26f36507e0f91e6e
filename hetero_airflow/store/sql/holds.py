"""Bars on devices and workers in the tables, and what is remembered of devices' errors.

A bar has no `changed` of its own: whoever writes one changes the worker's row, with which its bars are read. They are
few, so each is written by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, delete, insert, select, update

from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.device import Device
from hetero_airflow.model.device_health import NO_ERRORS, DeviceHealth
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.store import tables
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows
from hetero_airflow.store.sql.transaction import WriteTransaction, chunks
from hetero_airflow.store.store import HealthNoted, HoldLifted, HoldPlaced

_BAR, _HEALTH, _DEVICE = tables.bar.c, tables.health.c, tables.device.c
_RECORD: TypeAdapter[DeviceHealth] = TypeAdapter(DeviceHealth)

HoldEvent = HoldPlaced | HoldLifted | HealthNoted | HealthChanged
"""What is written here."""


def write_holds(writing: WriteTransaction, events: Sequence[HoldEvent]) -> None:
    """Write the events, in order; one that says what is known already changes nothing."""
    for event in events:
        if isinstance(event, HealthNoted):
            _write_health(writing, event.worker_id, event.device_id, event.health)
        elif isinstance(event, HealthChanged):
            _change_health(writing, event)
        elif isinstance(event, HoldPlaced):
            _write_hold(writing, event.bar.worker_id, event.bar.device_id, event.bar.kind, event.bar)
        else:
            _write_hold(writing, event.worker_id, event.device_id, event.kind, None)


def _write_hold(writing: WriteTransaction, worker_id: str, device_id: str, kind: HoldKind, bar: Hold | None) -> None:
    own = (_BAR.worker_id == worker_id, _BAR.device_id == device_id, _BAR.kind == kind)
    known = writing.connection.execute(select(tables.bar).where(*own)).one_or_none()
    wanted = None if bar is None else _columns(bar)
    if (None if known is None else known._asdict()) == wanted:
        return
    if known is not None:
        writing.connection.execute(delete(tables.bar).where(*own))
    if wanted is not None:
        writing.connection.execute(insert(tables.bar), wanted)
    worker = update(tables.worker).where(tables.worker.c.id == worker_id).values(changed=writing.stamp)
    writing.is_visible |= writing.connection.execute(worker).rowcount == 1


def _columns(bar: Hold) -> dict[str, Any]:
    return {
        "worker_id": bar.worker_id,
        "device_id": bar.device_id,
        "kind": bar.kind,
        "cause": clean_cause(bar.cause),
        "since": bar.since,
        "returns": bar.returns,
        "until": bar.until,
        "moves": bar.moves,
    }


def _write_health(writing: WriteTransaction, worker_id: str, device_id: str, health: DeviceHealth) -> None:
    own = (_HEALTH.worker_id == worker_id, _HEALTH.device_id == device_id)
    writing.connection.execute(delete(tables.health).where(*own))
    if health != NO_ERRORS:
        row = {"worker_id": worker_id, "device_id": device_id}
        writing.connection.execute(insert(tables.health), row | {"record": _RECORD.dump_json(health).decode()})


def _change_health(writing: WriteTransaction, event: HealthChanged) -> None:
    own = (_HEALTH.worker_id == event.worker_id, _HEALTH.device_id == event.device_id)
    record = writing.connection.execute(select(_HEALTH.record).where(*own)).scalar_one_or_none()
    before = NO_ERRORS if record is None else _RECORD.validate_json(record)
    health, bar = event.change(before)
    if health != before:
        _write_health(writing, event.worker_id, event.device_id, health)
        _write_hold(writing, event.worker_id, event.device_id, HoldKind.QUARANTINED, bar)


def read_holds(connection: Connection, worker_ids: Iterable[str]) -> dict[str, list[Hold]]:
    """Worker id → the bars on it and its devices; without those workers that have none."""
    found: defaultdict[str, list[Hold]] = defaultdict(list)
    for row in read_by_rows(connection, _holds_of(connection.dialect.name), key_rows(worker_ids)):
        values = row._asdict() | {"kind": HoldKind(row.kind)}
        found[row.worker_id].append(Hold(**values))
    return dict(found)


@lru_cache(maxsize=2)
def _holds_of(dialect: str) -> Select[Any]:
    workers = json_table(dialect, key="text")
    return select(tables.bar).join_from(workers, tables.bar, _BAR.worker_id == workers.c.key)


def read_devices_on_hold(connection: Connection, worker_ids: Iterable[str]) -> frozenset[tuple[str, str]]:
    """(worker id, device id) of the devices of those workers that must not be leased because of a bar."""
    bars = read_holds(connection, worker_ids)
    query = select(_DEVICE.worker_id, _DEVICE.inventory)
    return frozenset(
        (row.worker_id, device.id)
        for chunk in chunks(bars)
        for row in connection.execute(query.where(_DEVICE.worker_id.in_(chunk)))
        if holds_on(device := Device.model_validate_json(row.inventory), bars[row.worker_id])
    )


def read_health(connection: Connection) -> dict[tuple[str, str], DeviceHealth]:
    """(worker id, device id) → what is remembered of its errors."""
    rows = connection.execute(select(tables.health))
    return {(row.worker_id, row.device_id): _RECORD.validate_json(row.record) for row in rows}
