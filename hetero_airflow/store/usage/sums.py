"""Reads usage, and adds what `prune` is about to delete to the sums of days."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from hetero_airflow.model.usage.device_time import DeviceDay, Held, Present, TaskDay, device_days, task_days
from hetero_airflow.store import tables
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.store.tallies.tally import split_model_label

KEPT_DAYS = 400
"""So old may the sums of a day become."""

_PRESENT, _LEASE, _REQUEST = tables.device_presence.c, tables.lease.c, tables.request.c
_HELD, _STATE = tables.lease_device.c, tables.state.c
_DEVICE_DAY, _TASK_DAY = tables.device_day.c, tables.task_day.c


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
