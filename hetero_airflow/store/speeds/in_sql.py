"""Writes and reads the speeds that tasks reported; see `store.speeds.records`."""

from collections.abc import Iterable
from datetime import datetime

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, delete, insert, select, update

from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.store import tables
from hetero_airflow.store.speeds.records import LeaseSpeed, SpeedRecord, with_report
from hetero_airflow.store.sql.reads import log_unreadable
from hetero_airflow.store.sql.transaction import WriteTransaction

_SPEED = tables.speed.c


_RECORD: TypeAdapter[SpeedRecord] = TypeAdapter(SpeedRecord)


def add_speeds(transaction: WriteTransaction, reports: Iterable[LeaseSpeed], now: datetime) -> None:
    """Add what is new in the reports to what is known of their tasks and device classes."""
    for report in reports:
        task, name = report.measured.task, report.measured.device_class
        is_pair = (_SPEED.dag_id == task[0], _SPEED.task_id == task[1], _SPEED.device_class == name)
        stored = transaction.connection.execute(select(tables.speed).where(*is_pair)).one_or_none()
        before = None if stored is None else _read(stored.record, task)
        record = with_report(before, report, now)
        if record is None:
            continue
        values = {"record": _RECORD.dump_json(record).decode(), "measured_at": now, "changed": transaction.stamp}
        if stored is None:
            key = {"dag_id": task[0], "task_id": task[1], "device_class": name}
            transaction.connection.execute(insert(tables.speed), key | values)
        else:
            transaction.connection.execute(update(tables.speed).where(*is_pair), values)
        transaction.is_visible = True


def read_speeds(connection: Connection, since: int) -> tuple[int, tuple[MeasuredSpeed, ...]]:
    """The sequence of the newest change, and the speeds that changed after `since`, in the order of their changes."""
    query = select(tables.speed).where(_SPEED.changed > since).order_by(_SPEED.changed, _SPEED.dag_id, _SPEED.task_id)
    rows = connection.execute(query).all()
    records = (_read(row.record, (row.dag_id, row.task_id)) for row in rows)
    speeds = tuple(record.measured for record in records if record is not None)
    return max((row.changed for row in rows), default=since), speeds


def prune_speeds(connection: Connection, before: datetime) -> None:
    """Delete the speeds that were not measured since that time."""
    connection.execute(delete(tables.speed).where(_SPEED.measured_at < before))


def _read(text: str, task: tuple[str, str]) -> SpeedRecord | None:
    """The record; None if it can't be read, which is logged."""
    try:
        return _RECORD.validate_json(text)
    except ValidationError as error:
        log_unreadable("speed", ".".join(task), error)
        return None
