"""Airflow's audit log, where it takes a failure that this executor reports for a fault.

For a task that fails before it has begun, Airflow's scheduler writes the event "state mismatch": something else has
changed the state. Nothing has, so the reason of the failure stands there instead.
"""

from typing import Any

from airflow.models.log import Log
from sqlalchemy import event

from hetero_airflow.settings import AUDIT_EVENT

_MISMATCH = "state mismatch"
_MAX_REASONS = 1000
_reasons: dict[tuple[Any, ...], str] = {}


def explain_failure(key: Any, reason: str) -> None:
    """Keep the reason of a failure for the event that Airflow is about to write.

    :param key: Airflow's key of the task try
    """
    _reasons[_place(key)] = reason
    if len(_reasons) > _MAX_REASONS:
        del _reasons[next(iter(_reasons))]


def _place(task: Any) -> tuple[Any, ...]:
    return task.dag_id, task.task_id, task.run_id, task.map_index, task.try_number


@event.listens_for(Log, "before_insert")
def _explain(mapper: object, connection: object, row: Log) -> None:
    if row.event == _MISMATCH and (reason := _reasons.pop(_place(row), None)) is not None:
        row.event, row.extra = AUDIT_EVENT, reason
