"""What tasks held and what devices did, for the page: sums of days, by DAG, owner, team and other subjects."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from pydantic import BaseModel
from sqlalchemy import Engine

from hetero_airflow.executor.configuration import configured_prices, configured_shares
from hetero_airflow.executor.explanation.usage_report import (
    device_subjects,
    hours,
    sum_devices,
    sum_tasks,
    task_subjects,
)
from hetero_airflow.model.usage.device_time import DeviceDay, TaskDay
from hetero_airflow.model.usage.prices import Prices
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.sql.usage import Usage, read_usage

Subject = Literal["dag", "task", "owner", "team", "model", "worker", "device"]

FRESH_S = 60
"""The sums reach the page at most this many seconds late, and are read once for all readers in this time."""

MAX_SUBJECTS = 200
"""Rows that the page shows: those with the longest device-time."""

_ACCELERATORS = "accelerators"
_CPUS = "cpu"


class SubjectUsage(BaseModel):
    """The sums of a subject and a class of devices, in device-hours; of a CPU in core-hours."""

    subject: str | None
    """None for all DAGs that the reader may not see."""
    devices: str
    is_cpu: bool
    held_h: float
    existed_h: float | None
    """None for what tasks used, as the two below."""
    free_h: float | None
    on_hold_h: float | None
    leases: int | None
    """Leases that began in this time; None for what devices did."""
    cost: float | None
    """None if the devices have no price."""


class UsageDay(BaseModel):
    """What all accelerators did on a day (UTC), in device-hours; for an installation without them, its CPUs' cores."""

    day: date
    held_h: float
    free_h: float
    on_hold_h: float


class UsageTable(BaseModel):
    """The answer to one question about usage."""

    since: datetime
    until: datetime
    rows: list[SubjectUsage]
    total: int
    """All rows, shown or not."""
    days: list[UsageDay]
    of_days: str
    """accelerators or cpu"""


class UsageReader:
    """Reads the sums, at most once a minute for each length of time."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._last: dict[int, tuple[int, Usage]] = {}
        """Number of days → (period, the sums)."""

    def read(self, days: int, now: datetime) -> Usage:
        """The sums of today and the days before.

        :raises StoreUnavailable: the database is down
        """
        period = usage_period(now)
        with self._lock:
            known = self._last.get(days)
            if known is None or known[0] != period:
                with read_transaction(self._engine()) as connection:
                    known = period, read_usage(connection, begin_of(days, now), now)
                self._last = {length: kept for length, kept in self._last.items() if kept[0] == period} | {days: known}
            return known[1]


def usage_period(now: datetime) -> int:
    """The number of the time in which the sums are not read again."""
    return int(now.timestamp() // FRESH_S)


def begin_of(days: int, now: datetime) -> datetime:
    """The begin of the first of so many days (UTC), of which today is the last."""
    today = datetime.combine(now.astimezone(UTC).date(), datetime.min.time(), UTC)
    return today - timedelta(days=days - 1)


def usage_table(
    usage: Usage,
    by: Subject,
    readable: Collection[str],
    days: int,
    now: datetime,
    read_owners: Callable[[], Mapping[str, str]],
) -> UsageTable:
    """The sums by one subject, those with the longest device-time first.

    :param readable: the DAGs that the reader may see; those of all others are added up without a name
    :param read_owners: reads DAG id → its owners
    """
    prices = configured_prices()
    rows = _device_rows(usage.devices, by, prices) or _task_rows(
        usage.tasks, by, prices, readable, read_owners() if by == "owner" else {}
    )
    by_day = [row for row in usage.devices if row.kind != _CPUS]
    return UsageTable(
        since=begin_of(days, now),
        until=now,
        rows=sorted(rows, key=lambda row: (row.is_cpu, -row.held_h, row.subject is None, row.subject))[:MAX_SUBJECTS],
        total=len(rows),
        days=_days(by_day or usage.devices),
        of_days=_ACCELERATORS if by_day else _CPUS,
    )


def _task_rows(
    rows: Iterable[TaskDay], by: Subject, prices: Prices, readable: Collection[str], owners: Mapping[str, str]
) -> list[SubjectUsage]:
    named = task_subjects(by, configured_shares(), owners)
    if named is None:
        return []
    rows, hidden = [*rows], ""
    sums = sum_tasks(rows, lambda row: named(row) if row.dag_id in readable else hidden, prices)
    return [
        SubjectUsage(
            subject=row.subject or None,
            devices=row.device_class,
            is_cpu=row.kind == _CPUS,
            held_h=hours(row.held),
            existed_h=None,
            free_h=None,
            on_hold_h=None,
            leases=row.leases,
            cost=row.cost,
        )
        for row in sums
    ]


def _device_rows(rows: Iterable[DeviceDay], by: Subject, prices: Prices) -> list[SubjectUsage]:
    if by not in ("model", "worker", "device"):
        return []
    return [
        SubjectUsage(
            subject=row.subject,
            devices=row.device_class,
            is_cpu=row.kind == _CPUS,
            held_h=hours(row.held),
            existed_h=hours(row.existed),
            free_h=hours(row.free),
            on_hold_h=hours(row.on_hold),
            leases=None,
            cost=row.cost,
        )
        for row in sum_devices(rows, device_subjects(by), prices)
    ]


def _days(rows: Iterable[DeviceDay]) -> list[UsageDay]:
    sums: defaultdict[date, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        for number, amount in enumerate((row.held, row.free, row.on_hold)):
            sums[row.day][number] += amount
    return [
        UsageDay(day=day, held_h=hours(held), free_h=hours(free), on_hold_h=hours(on_hold))
        for day, (held, free, on_hold) in sorted(sums.items())
    ]
