"""Reads and writes holds on devices and workers, and the records of devices' errors.

A hold has no column `changed`. Its writer changes the worker's row, with which the holds are read. Holds are rare, so
each is written on its own.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, delete, insert, select, update

from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.health import NO_ERRORS, DeviceHealth
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.store import tables
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows
from hetero_airflow.store.sql.transaction import WriteTransaction, read_chunks
from hetero_airflow.store.store import HealthNoted, HoldLifted, HoldPlaced

_HOLD, _HEALTH, _DEVICE = tables.hold.c, tables.health.c, tables.device.c
HEALTH: TypeAdapter[DeviceHealth] = TypeAdapter(DeviceHealth)
"""Reads and writes the JSON of an error record."""

HoldEvent = HoldPlaced | HoldLifted | HealthNoted | HealthChanged


def write_holds(transaction: WriteTransaction, events: Sequence[HoldEvent]) -> None:
    """Write the events in order. An event that changes nothing writes nothing."""
    for event in events:
        if isinstance(event, HealthNoted):
            _write_health(transaction, event.worker_id, event.device_id, event.health)
        elif isinstance(event, HealthChanged):
            _change_health(transaction, event)
        elif isinstance(event, HoldPlaced):
            _write_hold(transaction, event.hold.worker_id, event.hold.device_id, event.hold.kind, event.hold)
        else:
            _write_hold(transaction, event.worker_id, event.device_id, event.kind, None)


def _write_hold(
    transaction: WriteTransaction, worker_id: str, device_id: str, kind: HoldKind, hold: Hold | None
) -> None:
    is_key = (_HOLD.worker_id == worker_id, _HOLD.device_id == device_id, _HOLD.kind == kind)
    stored = transaction.connection.execute(select(tables.hold).where(*is_key)).one_or_none()
    wanted = None if hold is None else _columns(hold)
    if (None if stored is None else stored._asdict()) == wanted:
        return
    if stored is not None:
        transaction.connection.execute(delete(tables.hold).where(*is_key))
    if wanted is not None:
        transaction.connection.execute(insert(tables.hold), wanted)
    transaction.changed_workers.add(worker_id)
    worker = update(tables.worker).where(tables.worker.c.id == worker_id).values(changed=transaction.stamp)
    transaction.is_visible |= transaction.connection.execute(worker).rowcount == 1


def _columns(hold: Hold) -> dict[str, Any]:
    return asdict(hold) | {"cause": clean_cause(hold.cause)}


def _write_health(transaction: WriteTransaction, worker_id: str, device_id: str, health: DeviceHealth) -> None:
    is_device = (_HEALTH.worker_id == worker_id, _HEALTH.device_id == device_id)
    transaction.connection.execute(delete(tables.health).where(*is_device))
    if health != NO_ERRORS:
        row = {"worker_id": worker_id, "device_id": device_id}
        transaction.connection.execute(insert(tables.health), row | {"record": HEALTH.dump_json(health).decode()})


def _change_health(transaction: WriteTransaction, event: HealthChanged) -> None:
    is_device = (_HEALTH.worker_id == event.worker_id, _HEALTH.device_id == event.device_id)
    record = transaction.connection.execute(select(_HEALTH.record).where(*is_device)).scalar_one_or_none()
    before = NO_ERRORS if record is None else HEALTH.validate_json(record)
    health, hold = event.change(before)
    if health != before:
        _write_health(transaction, event.worker_id, event.device_id, health)
        _write_hold(transaction, event.worker_id, event.device_id, HoldKind.QUARANTINED, hold)


def read_holds(connection: Connection, worker_ids: Iterable[str]) -> dict[str, list[Hold]]:
    """Worker id → the holds on it and its devices; without workers that have none."""
    holds: defaultdict[str, list[Hold]] = defaultdict(list)
    for row in read_by_rows(connection, _holds_of, key_rows(worker_ids)):
        values = row._asdict() | {"kind": HoldKind(row.kind)}
        holds[row.worker_id].append(Hold(**values))
    return dict(holds)


@lru_cache(maxsize=2)
def _holds_of(dialect: str) -> Select[Any]:
    workers = json_table(dialect, key="text")
    return select(tables.hold).join_from(workers, tables.hold, _HOLD.worker_id == workers.c.key)


def read_devices_on_hold(connection: Connection, worker_ids: Iterable[str]) -> frozenset[tuple[str, str]]:
    """(worker id, device id) of those devices of the workers that must not be leased because of a hold."""
    holds = read_holds(connection, worker_ids)
    query = select(_DEVICE.worker_id, _DEVICE.inventory)
    return frozenset(
        (row.worker_id, device.id)
        for row in read_chunks(connection, query, _DEVICE.worker_id, holds)
        if holds_on(device := Device.model_validate_json(row.inventory), holds[row.worker_id])
    )
