"""What devices and tasks used, in tables: the times in which devices were there, and sums of days.

Leases have their own rows. So only the rare changes of devices are written beside them: when a worker comes, is lost,
reports other devices, or when a hold begins or ends. Placing and ending a lease costs nothing more. The sums are made
when `prune` deletes the rows, so they outlive them, and each second is counted once.

Rejected: sums that each transaction keeps. They cost two more statements for each lease, and a device that is on hold
while it is leased changes what the free part counts as, so each change of one needs the state of the other.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, Table, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from hetero_airflow.model.device import Device
from hetero_airflow.model.hold import holds_on
from hetero_airflow.model.usage.device_time import (
    DeviceDay,
    Held,
    Present,
    TaskDay,
    device_days,
    task_days,
    usage_class,
)
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.holds import read_holds
from hetero_airflow.store.sql.json_rows import json_table, key_rows, read_by_rows
from hetero_airflow.store.sql.tallies import split_model_label
from hetero_airflow.store.sql.transaction import WriteTransaction

KEPT_DAYS = 400
"""So old may the sums of a day become."""

_LEASE, _REQUEST = tables.lease.c, tables.request.c
_HELD, _STATE = tables.lease_device.c, tables.state.c
_DEVICE_DAY, _TASK_DAY = tables.device_day.c, tables.task_day.c
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
    for row in read_by_rows(transaction.connection, _open_times, key_rows(worker_ids), now=now):
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
    rows = read_by_rows(transaction.connection, _devices, key_rows(worker_ids))
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


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums of the days in a time that was asked for; its first and last day may be there in part."""

    devices: tuple[DeviceDay, ...]
    tasks: tuple[TaskDay, ...]


def read_usage(connection: Connection, since: datetime, until: datetime) -> Usage:
    """What devices and tasks did between two times.

    Of days that are older than the history, only the sums are kept: such a day counts as a whole if it begins in this
    time, and not at all otherwise.
    """
    summed = connection.execute(select(_STATE.usage_until)).scalar_one_or_none()
    begin = since if summed is None else max(since, summed)
    present, held = _read_present(connection, begin, until), _read_held(connection, begin, until)
    days = (_first_whole_day(since), until.astimezone(UTC).date())
    old_devices = connection.execute(select(tables.device_day).where(_DEVICE_DAY.day.between(*days)))
    old_tasks = connection.execute(select(tables.task_day).where(_TASK_DAY.day.between(*days)))
    return Usage(
        (*(DeviceDay(**row._asdict()) for row in old_devices), *device_days(present, held)),
        (*(TaskDay(**row._asdict()) for row in old_tasks), *task_days(held)),
    )


def add_sums(transaction: WriteTransaction, until: datetime) -> None:
    """Add all that happened before this time, and was not added yet, to the sums; delete sums that are too old."""
    connection = transaction.connection
    since = connection.execute(select(_STATE.usage_until)).scalar_one_or_none() or datetime.min.replace(tzinfo=UTC)
    if since >= until:
        return
    present, held = _read_present(connection, since, until), _read_held(connection, since, until)
    _add(transaction, tables.device_day, (asdict(row) for row in device_days(present, held)))
    _add(transaction, tables.task_day, (asdict(row) for row in task_days(held)))
    connection.execute(update(tables.state).values(usage_until=until))
    connection.execute(delete(tables.device_presence).where(_PRESENT.until <= until))
    oldest = until.astimezone(UTC).date() - timedelta(days=KEPT_DAYS)
    for table in (tables.device_day, tables.task_day):
        connection.execute(delete(table).where(table.c.day < oldest))


def _add(transaction: WriteTransaction, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    insert = (postgresql.insert if transaction.dialect == "postgresql" else sqlite.insert)(table)
    sums = [column for column in table.c if not column.primary_key and column.name != "kind"]
    put = insert.values({column.name: bindparam(column.name) for column in table.c}).on_conflict_do_update(
        index_elements=[column.name for column in table.primary_key],
        set_={column.name: column + insert.excluded[column.name] for column in sums},
    )
    transaction.execute_many(put, [*rows])


def _read_present(connection: Connection, since: datetime, until: datetime) -> list[Present]:
    """The times in which devices were there, cut at both ends."""
    query = select(tables.device_presence).where(
        _PRESENT.since < until, or_(_PRESENT.until.is_(None), _PRESENT.until > since)
    )
    return [
        Present(**row._asdict() | {"since": max(row.since, since), "until": min(row.until or until, until)})
        for row in connection.execute(query)
    ]


def _read_held(connection: Connection, since: datetime, until: datetime) -> list[Held]:
    """What leases held, cut at both ends, with the class of each device as it was noted last before the lease ended."""
    classes = _read_classes(connection)
    query = (
        select(
            *(_LEASE.id, _REQUEST.dag_id, _REQUEST.task_id, _HELD.worker_id, _HELD.device_id, _HELD.milli),
            *(_LEASE.granted_at, _LEASE.ended_at, _LEASE.device_model),
        )
        .join_from(tables.lease, tables.request, _REQUEST.id == _LEASE.request_id)
        .join(tables.lease_device, _HELD.lease_id == _LEASE.id)
        .where(_LEASE.granted_at < until, or_(_LEASE.ended_at.is_(None), _LEASE.ended_at > since), _HELD.milli > 0)
    )
    held = []
    for row in connection.execute(query):
        device_class, kind = classes.get((row.worker_id, row.device_id)) or _class_of_lease(row.device_model)
        begin, end = max(row.granted_at, since), min(row.ended_at or until, until)
        names = (row.id, row.dag_id, row.task_id, row.worker_id, row.device_id, device_class, kind)
        if begin < end:
            held.append(Held(*names, row.milli, begin, end, is_begun=begin == row.granted_at))
    return held


def _read_classes(connection: Connection) -> dict[tuple[str, str], tuple[str, str]]:
    """(worker id, device id) → its class and its kind, as they were noted last."""
    columns = (_PRESENT.worker_id, _PRESENT.device_id, _PRESENT.device_class, _PRESENT.kind)
    rows = connection.execute(select(*columns).order_by(_PRESENT.until.is_(None), _PRESENT.until))
    return {(row.worker_id, row.device_id): (row.device_class, row.kind) for row in rows}


def _class_of_lease(label: str | None) -> tuple[str, str]:
    """The class and the kind of a device of which nothing was noted, from the model of its lease."""
    vendor, kind, model = split_model_label(label or "unknown/unknown/unknown")
    return f"{vendor}/{model}", kind


def _first_whole_day(since: datetime) -> date:
    day = since.astimezone(UTC)
    return day.date() if day == datetime.combine(day.date(), datetime.min.time(), UTC) else day.date() + timedelta(1)
