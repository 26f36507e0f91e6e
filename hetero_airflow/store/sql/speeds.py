"""The speeds that tasks report, in the tables, and how reports add up.

A running task reports again and again what it has done since it started. Each report counts only with what the one
before did not have. So a report can be written twice, by another scheduler or after a restart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, insert, select, update

from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.store import tables
from hetero_airflow.store.sql.reads import log_unreadable
from hetero_airflow.store.sql.tallies import STEP_TIMES, Occurrence, add_tallies
from hetero_airflow.store.sql.transaction import WriteTransaction

_SPEED = tables.speed.c

MAX_COUNTED = 64
"""Leases of one pair of which it is known how much was counted; those that reported last."""


@dataclass(frozen=True, slots=True)
class LeaseSpeed:
    """What a task did under a lease since it started."""

    lease_id: str
    measured: MeasuredSpeed


@dataclass(frozen=True, slots=True)
class SpeedRecord:
    """What is known of a task on a device class."""

    measured: MeasuredSpeed
    counted: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Lease id → steps and seconds that `measured` has of it."""


_RECORD: TypeAdapter[SpeedRecord] = TypeAdapter(SpeedRecord)


def with_report(before: SpeedRecord | None, report: LeaseSpeed, now: datetime) -> SpeedRecord | None:
    """The record with what is new in a report; None if nothing is. Ends that are over are left out.

    >>> from hetero_airflow.testing import EPOCH as now
    >>> from hetero_airflow.testing import a_speed
    >>> first = with_report(None, LeaseSpeed("lease-1", a_speed(2.0, steps=120, seconds=60.0)), now)
    >>> with_report(first, LeaseSpeed("lease-1", a_speed(2.0, steps=120, seconds=60.0)), now) is None
    True
    >>> with_report(first, LeaseSpeed("lease-1", a_speed(2.0, steps=180, seconds=90.0)), now).measured.steps
    180
    """
    measured = report.measured
    total = (measured.steps, measured.seconds)
    if before is None:
        return SpeedRecord(measured, {report.lease_id: total})
    steps, seconds = before.counted.get(report.lease_id, (0, 0.0))
    if measured.seconds <= seconds:
        return None
    newer = replace(measured, steps=max(0, measured.steps - steps), seconds=measured.seconds - seconds)
    counted = {lease_id: part for lease_id, part in before.counted.items() if lease_id != report.lease_id}
    newest = dict(list({**counted, report.lease_id: total}.items())[-MAX_COUNTED:])
    ends = {lease_id: at for lease_id, at in {**before.measured.ends, **measured.ends}.items() if at > now}
    combined = before.measured.combined(newer)
    return SpeedRecord(
        replace(combined, ends={lease_id: ends[lease_id] for lease_id in newest if lease_id in ends}), newest
    )


def add_speeds(transaction: WriteTransaction, reports: Iterable[LeaseSpeed], now: datetime) -> None:
    """Add what is new in the reports to what is known of their tasks and device classes, and to the tallies."""
    occurrences: list[Occurrence] = []
    for report in reports:
        task, name = report.measured.task, report.measured.device_class
        is_pair = (_SPEED.dag_id == task[0], _SPEED.task_id == task[1], _SPEED.device_class == name)
        stored = transaction.connection.execute(select(tables.speed).where(*is_pair)).one_or_none()
        before = None if stored is None else _read(stored.record, task)
        record = with_report(before, report, now)
        if record is None:
            continue
        occurrences += _occurrences(before, report)
        values = {"record": _RECORD.dump_json(record).decode(), "measured_at": now, "changed": transaction.stamp}
        if stored is None:
            key = {"dag_id": task[0], "task_id": task[1], "device_class": name}
            transaction.connection.execute(insert(tables.speed), key | values)
        else:
            transaction.connection.execute(update(tables.speed).where(*is_pair), values)
        transaction.is_visible = True
    add_tallies(transaction, occurrences)


def _occurrences(before: SpeedRecord | None, report: LeaseSpeed) -> Iterator[Occurrence]:
    """What the time that is new in a report was spent on."""
    _, counted_s = (before.counted if before else {}).get(report.lease_id, (0, 0.0))
    if report.measured.shares is not None:
        for name, spent_on in STEP_TIMES.items():
            part = getattr(report.measured.shares, spent_on)
            elapsed = timedelta(seconds=part * (report.measured.seconds - counted_s))
            yield Occurrence(name, lease_id=report.lease_id, elapsed=elapsed)


def read_speeds(connection: Connection, since: int) -> tuple[int, tuple[MeasuredSpeed, ...]]:
    """The sequence of the newest change, and the speeds that changed after `since`, in the order of their changes."""
    query = select(tables.speed).where(_SPEED.changed > since).order_by(_SPEED.changed, _SPEED.dag_id, _SPEED.task_id)
    rows = connection.execute(query).all()
    records = (_read(row.record, (row.dag_id, row.task_id)) for row in rows)
    speeds = tuple(record.measured for record in records if record is not None)
    return max((row.changed for row in rows), default=since), speeds


def _read(text: str, task: tuple[str, str]) -> SpeedRecord | None:
    """The record; None if it can't be read, which is logged."""
    try:
        return _RECORD.validate_json(text)
    except ValidationError as error:
        log_unreadable("speed", ".".join(task), error)
        return None
