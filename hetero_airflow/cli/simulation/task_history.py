"""What ran in this installation, as a workload: ended task instances, and the devices that they asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Engine, select

from hetero_airflow.cli.requests.placed_requests import placed_requests
from hetero_airflow.errors import TraceError
from hetero_airflow.model.device_speeds import data_sheet_speed
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import Run
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import History

MAX_INSTANCES = 100_000
"""The newest that are taken."""

_PLAIN = DeviceRequest.parse("cpu")
"""What a task is taken to need that asks for no device: a core."""


def history_workload(
    engine: Engine, store: History, days: float, now: datetime, device_classes: Collection[str]
) -> Workload:
    """The task instances that ended in the last days, each arriving when it was queued.

    A device task takes as long on other devices as the makers' data sheets relate them to the one that it ran on;
    where they don't, and for a plain task, all devices are equal. Times are since the first was queued.

    :param device_classes: those of the cluster that it is to run on
    :raises TraceError: none ended
    """
    table = TaskInstance.__table__
    columns = (table.c.id, table.c.dag_id, table.c.task_id, table.c.queued_dttm, table.c.start_date, table.c.end_date)
    since = now - timedelta(days=days)
    query = (
        select(*columns, table.c.priority_weight)
        .where(table.c.end_date > since, table.c.start_date.is_not(None))
        .order_by(table.c.end_date.desc())
        .limit(MAX_INSTANCES)
    )
    with read_transaction(engine) as connection:
        rows = list(connection.execute(query))
    if not rows:
        raise TraceError(
            f"the history of the last {days:g} days",
            found="no task instance that ended",
            remedy="Look further back with --history, or name a public trace with --trace",
        )
    rows.sort(key=lambda row: (row.queued_dttm or row.start_date, str(row.id)))
    asked = placed_requests(engine, (str(row.id) for row in rows))
    held = _longest_runs(store.runs())
    first = min(row.queued_dttm or row.start_date for row in rows)
    jobs = (_job(row, first, asked.get(str(row.id)), held.get(str(row.id)), device_classes) for row in rows)
    return Workload("history", tuple(jobs))


def _longest_runs(runs: Iterable[Run]) -> dict[str, Run]:
    longest: dict[str, Run] = {}
    for run in runs:
        if run.request_id not in longest or run.held_s > longest[run.request_id].held_s:
            longest[run.request_id] = run
    return longest


def _job(row: Any, first: datetime, asked: PendingRequest | None, run: Run | None, classes: Collection[str]) -> Job:
    arrival_s = ((row.queued_dttm or row.start_date) - first).total_seconds()
    took_s = max((row.end_date - row.start_date).total_seconds(), 1e-3)
    own = None if run is None else data_sheet_speed(run.device_class)
    speeds = {ANY_DEVICE: 1.0}
    if own is not None:
        speeds |= {name: sheet / own for name in classes if (sheet := data_sheet_speed(name)) is not None}
    return Job(
        str(row.id),
        arrival_s,
        _PLAIN if asked is None else asked.request,
        took_s,
        speeds,
        task=row.task_id,
        group=row.dag_id,
        weight=row.priority_weight or 1,
    )
