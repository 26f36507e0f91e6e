"""``airflow hetero usage``: how long devices were held, free or on hold, and by whom."""

import csv
import io
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import cell, clean, console, moment, show, show_json, table
from hetero_airflow.errors import RequestError
from hetero_airflow.executor.airflow_db.dag_owners import read_dag_owners
from hetero_airflow.executor.configuration import configured_prices, configured_shares
from hetero_airflow.executor.explanation.usage_report import (
    DeviceUsageSum,
    TaskUsage,
    device_subjects,
    hours,
    sum_devices,
    sum_tasks,
    task_subjects,
)
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.sql.usage import read_usage
from hetero_airflow.units import parse_duration_s

Sums = Sequence[TaskUsage] | Sequence[DeviceUsageSum]

_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@action
def usage(args: Namespace) -> None:
    """Print the sums.

    :raises RequestError: ``--since`` or ``--until`` is no time, or the time is empty
    """
    now = datetime.now(UTC)
    until = now if args.until is None else _read_time(args.until, "--until", now)
    since = _read_time(args.since, "--since", now)
    if since >= until:
        raise RequestError("--since", args.since, found="an empty time", remedy=f"Begin before {moment(until)}")
    with read_transaction(database()) as connection:
        found = read_usage(connection, since, min(until, now))
    prices = configured_prices()
    owners = read_dag_owners(database()) if args.by == "owner" else {}
    task_subject = task_subjects(args.by, configured_shares(), owners)
    sums: Sums = (
        sum_devices(found.devices, device_subjects(args.by), prices)
        if task_subject is None
        else sum_tasks(found.tasks, task_subject, prices)
    )
    if args.json:
        show_json([usage_values(row, args.by) for row in sums])
    elif args.csv:
        console().out(usage_csv(sums, args.by), end="")
    else:
        show(*usage_report(sums, args.by, since, min(until, now)))


def usage_values(row: TaskUsage | DeviceUsageSum, by: str) -> dict[str, Any]:
    """A sum as JSON values; times in device-seconds, of CPUs in core-seconds.

    >>> from hetero_airflow.model.usage.device_time import DEVICE_SECOND
    >>> usage_values(TaskUsage("etl", "nvidia/v100", "gpu", 90 * DEVICE_SECOND, 2, None), "dag")
    {'dag': 'etl', 'devices': 'nvidia/v100', 'kind': 'gpu', 'held_s': 90.0, 'leases': 2, 'cost': None}
    """
    names = {by: row.subject, "devices": row.device_class, "kind": row.kind}
    if isinstance(row, TaskUsage):
        return names | {"held_s": _seconds(row.held), "leases": row.leases, "cost": row.cost}
    amounts = {"existed_s": row.existed, "held_s": row.held, "free_s": row.free, "on_hold_s": row.on_hold}
    return names | {name: _seconds(amount) for name, amount in amounts.items()} | {"cost": row.cost}


def usage_csv(sums: Sums, by: str) -> str:
    """The sums as comma-separated values with a header. A text that a spreadsheet would run as a formula is quoted."""
    written = io.StringIO()
    if sums:
        writer = csv.DictWriter(written, usage_values(sums[0], by), lineterminator="\n")
        writer.writeheader()
        for row in sums:
            writer.writerow({name: _plain(value) for name, value in usage_values(row, by).items()})
    return written.getvalue()


def usage_report(sums: Sums, by: str, since: datetime, until: datetime) -> Iterator[RenderableType]:
    """The sums as a table for people. Pure."""
    yield cell(f"Usage by {by}, from {moment(since)} to {moment(until)}", style="bold")
    if not sums:
        yield cell("No device was there in this time." if by in _OF_DEVICES else "No task held a device in this time.")
        return
    has_prices = any(row.cost is not None for row in sums)
    headers = [by.upper(), "DEVICES", *(_DEVICE_HEADERS if isinstance(sums[0], DeviceUsageSum) else _TASK_HEADERS)]
    rows = [
        [cell(row.subject), cell(_class_text(row)), *map(cell, _amounts(row))]
        + ([cell("no price" if row.cost is None else f"{row.cost:,.2f}")] if has_prices else [])
        for row in sums
    ]
    yield table([*headers, *(["COST"] if has_prices else [])], rows)
    yield cell("Hours are device-hours; those of a CPU are hours of a core.")


_OF_DEVICES = ("model", "worker", "device", "day")
_TASK_HEADERS = ("HELD (HOURS)", "LEASES")
_DEVICE_HEADERS = ("EXISTED (HOURS)", "HELD", "FREE", "ON HOLD", "HELD %")


def _class_text(row: TaskUsage | DeviceUsageSum) -> str:
    return f"{row.device_class} (cores)" if row.kind == "cpu" else row.device_class


def _amounts(row: TaskUsage | DeviceUsageSum) -> list[str]:
    if isinstance(row, TaskUsage):
        return [f"{hours(row.held):,.2f}", str(row.leases)]
    amounts = [f"{hours(amount):,.2f}" for amount in (row.existed, row.held, row.free, row.on_hold)]
    return [*amounts, f"{row.held / row.existed:.1%}"]


def _seconds(amount: int) -> float:
    return hours(amount * 3600)


def _plain(value: object) -> object:
    """A value that no spreadsheet takes for a formula, and no terminal for a command."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return f"'{text}" if text.startswith(_SPREADSHEET_FORMULA) else text


def _read_time(text: str, field: str, now: datetime) -> datetime:
    """A time that is given as a duration before now, or as a date or time; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return now - timedelta(seconds=parse_duration_s(text, field))
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
