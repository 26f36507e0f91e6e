"""How long tasks take that need no device, from Airflow's own history."""

from __future__ import annotations

import statistics
from collections import defaultdict

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Engine, select

from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.store.sql.transaction import read_transaction

_NEWEST = 2000
"""Ended task instances of the DAG that are looked at."""


def plain_durations(engine: Engine, dag_id: str) -> dict[TaskName, Interval]:
    """Task → how long its successful runs took: the shortest of ten, the median, the longest of ten."""
    table = TaskInstance.__table__
    query = (
        select(table.c.task_id, table.c.start_date, table.c.end_date)
        .where(table.c.dag_id == dag_id, table.c.state == "success", table.c.start_date.is_not(None))
        .where(table.c.end_date.is_not(None))
        .order_by(table.c.end_date.desc())
        .limit(_NEWEST)
    )
    took: defaultdict[TaskName, list[float]] = defaultdict(list)
    with read_transaction(engine) as connection:
        for row in connection.execute(query):
            took[dag_id, row.task_id].append(max((row.end_date - row.start_date).total_seconds(), 1e-3))
    return {task: _interval(values) for task, values in took.items()}


def _interval(values: list[float]) -> Interval:
    if len(values) == 1:
        return Interval(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Interval(tenths[0], statistics.median(values), tenths[8])
