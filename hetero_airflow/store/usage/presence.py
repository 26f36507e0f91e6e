"""Writes when devices come, go, change, are put on hold, or are taken off it."""

from collections.abc import Collection
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, delete, select, update

from hetero_airflow.model.device import Device
from hetero_airflow.model.hold import holds_on
from hetero_airflow.model.usage.device_time import usage_class
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.holds import read_holds
from hetero_airflow.store.sql.json_rows import json_table, key_rows
from hetero_airflow.store.sql.transaction import WriteTransaction

_WORKER, _DEVICE, _PRESENT = tables.worker.c, tables.device.c, tables.device_presence.c
_IS_OPEN = (
    _PRESENT.worker_id == bindparam("worker_key"),
    _PRESENT.device_id == bindparam("key"),
    _PRESENT.until.is_(None),
)
_DROP_EMPTY = delete(tables.device_presence).where(*_IS_OPEN, _PRESENT.since >= bindparam("now"))
_CLOSE = update(tables.device_presence).where(*_IS_OPEN).values(until=bindparam("now"))


class _Shown(NamedTuple):
    """What is noted of a device; a change of it begins a new row."""

    device_class: str
    kind: str
    capacity_milli: int
    is_on_hold: bool


def note_presence(transaction: WriteTransaction, worker_ids: Collection[str], now: datetime) -> None:
    """Compare the devices of these workers, whose rows are written, with the open times, and write the differences.

    The clocks of two processes differ. A time never begins before the one before it has ended, so none counts twice.
    """
    if not worker_ids:
        return
    wanted = _current(transaction, worker_ids)
    stored: dict[tuple[str, str], _Shown] = {}
    earliest: dict[tuple[str, str], datetime] = {}
    """Device → when its next time may begin; without those that may begin now."""
    for row in transaction.read_by_rows(_open_times, key_rows(worker_ids), now=now):
        key, noted_until = (row.worker_id, row.device_id), row.until or row.since
        if row.until is None:
            stored[key] = _Shown(row.device_class, row.kind, row.capacity_milli, bool(row.is_on_hold))
        earliest[key] = max(noted_until, earliest.get(key, now))
    over = [
        {"worker_key": key[0], "key": key[1], "now": now} for key, shown in stored.items() if wanted.get(key) != shown
    ]
    transaction.execute_many(_DROP_EMPTY, over)
    transaction.execute_many(_CLOSE, over)
    begun = [
        {
            "worker_id": key[0],
            "device_id": key[1],
            "since": max(now, earliest.get(key, now)),
            "until": None,
            **shown._asdict(),
        }
        for key, shown in wanted.items()
        if stored.get(key) != shown
    ]
    transaction.insert_rows(tables.device_presence, begun)


def _current(transaction: WriteTransaction, worker_ids: Collection[str]) -> dict[tuple[str, str], _Shown]:
    """(worker id, device id) → what is to be noted, for the devices that online workers report.

    A device whose parts are leased instead, such as a GPU in MIG mode, does not count beside its parts.
    """
    rows = transaction.read_by_rows(_devices, key_rows(worker_ids))
    devices = [(row.worker_id, Device.model_validate_json(row.inventory)) for row in rows]
    holds = read_holds(transaction.connection, worker_ids)
    divided = {(worker_id, device.parent) for worker_id, device in devices if device.parent is not None}
    return {
        (worker_id, device.id): _Shown(
            usage_class(device),
            device.kind,
            device.capacity_milli,
            not device.leasable or bool(holds_on(device, holds.get(worker_id, ()))),
        )
        for worker_id, device in devices
        if device.leasable or (worker_id, device.id) not in divided
    }


@lru_cache(maxsize=2)
def _devices(dialect: str) -> Select[Any]:
    workers = json_table(dialect, key="text")
    is_online = (_WORKER.id == workers.c.key) & (_WORKER.state == WorkerState.ONLINE)
    is_reported = (_DEVICE.worker_id == _WORKER.id) & ~_DEVICE.is_vanished
    query = select(_DEVICE.worker_id, _DEVICE.inventory)
    return query.join_from(workers, tables.worker, is_online).join(tables.device, is_reported)


@lru_cache(maxsize=2)
def _open_times(dialect: str) -> Select[Any]:
    """The times that go on, and those that ended later than now, by another clock."""
    workers = json_table(dialect, key="text")
    is_open = _PRESENT.until.is_(None) | (_PRESENT.until > bindparam("now", type_=_PRESENT.until.type))
    of_worker = (_PRESENT.worker_id == workers.c.key) & is_open
    return select(tables.device_presence).join_from(workers, tables.device_presence, of_worker)
