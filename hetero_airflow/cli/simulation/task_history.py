"""What ran in this installation: ended task instances as a workload, and the durations of plain tasks."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Engine, select

from hetero_airflow.errors import TraceError
from hetero_airflow.executor.explanation.live_snapshot import placed_requests
from hetero_airflow.model.devices.speeds import data_sheet_speed
from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import EndedRun
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.simulator.workload import ANY_DEVICE, Job, Workload
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_transaction

MAX_INSTANCES = 100_000
"""How many task instances a workload has at most; the newest are taken."""

MAX_DURATIONS = 2000
"""From how many ended task instances of a DAG durations are taken at most; the newest are taken."""

_PLAIN = DeviceRequest.parse("cpu")
"""The assumed request of a task that requests no device: one core."""


def history_workload(
    engine: Engine, store: SqlStore, days: float, now: datetime, device_classes: Collection[str]
) -> Workload:
    """The task instances that ended in the last days; each arrives when it was queued.

    The duration of a device task on other devices follows from the vendors' data sheets. If they have no figure, and
    for a plain task, all devices are equally fast. Times count from when the first instance was queued.

    :param device_classes: the device classes of the simulated cluster
    :raises TraceError: no task instance ended
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
            found="no ended task instance",
            remedy="Look further back with --history, or name a public trace with --trace",
        )
    rows.sort(key=lambda row: (row.queued_dttm or row.start_date, str(row.id)))
    requests = placed_requests(engine, (str(row.id) for row in rows))
    runs = _longest_runs(store.runs())
    first = min(row.queued_dttm or row.start_date for row in rows)
    jobs = (_job(row, first, requests.get(str(row.id)), runs.get(str(row.id)), device_classes) for row in rows)
    return Workload("history", tuple(jobs))


def _longest_runs(runs: Iterable[EndedRun]) -> dict[str, EndedRun]:
    longest: dict[str, EndedRun] = {}
    for run in runs:
        if run.request_id not in longest or run.held_s > longest[run.request_id].held_s:
            longest[run.request_id] = run
    return longest


def _job(
    row: Any, first: datetime, pending: PendingRequest | None, run: EndedRun | None, classes: Collection[str]
) -> Job:
    arrival_s = ((row.queued_dttm or row.start_date) - first).total_seconds()
    duration_s = max((row.end_date - row.start_date).total_seconds(), 1e-3)
    actual = None if run is None else data_sheet_speed(run.device_class)
    speeds = {ANY_DEVICE: 1.0}
    if actual is not None:
        speeds |= {name: sheet / actual for name in classes if (sheet := data_sheet_speed(name)) is not None}
    return Job(
        str(row.id),
        arrival_s,
        _PLAIN if pending is None else pending.request,
        duration_s,
        speeds,
        task=row.task_id,
        group=row.dag_id,
        weight=row.priority_weight or 1,
    )


def plain_durations(engine: Engine, dag_id: str) -> dict[TaskName, Interval]:
    """Task → duration of its successful instances: first decile, median, ninth decile."""
    table = TaskInstance.__table__
    query = (
        select(table.c.task_id, table.c.start_date, table.c.end_date)
        .where(table.c.dag_id == dag_id, table.c.state == "success", table.c.start_date.is_not(None))
        .where(table.c.end_date.is_not(None))
        .order_by(table.c.end_date.desc())
        .limit(MAX_DURATIONS)
    )
    durations_s: defaultdict[TaskName, list[float]] = defaultdict(list)
    with read_transaction(engine) as connection:
        for row in connection.execute(query):
            durations_s[dag_id, row.task_id].append(max((row.end_date - row.start_date).total_seconds(), 1e-3))
    return {task: _interval(values) for task, values in durations_s.items()}


def _interval(values: list[float]) -> Interval:
    if len(values) == 1:
        return Interval(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Interval(tenths[0], statistics.median(values), tenths[8])
