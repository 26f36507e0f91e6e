"""What Airflow's database says of task instances. Sessions are the caller's, and are short."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from airflow._shared.state import TaskScope
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.state import get_state_backend
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from hetero_airflow.runtime.task_lease import TaskLease

STATE_KEY = "hetero.lease"
"""Key in the task state store under which a task finds the record of its last lease."""


@dataclass(frozen=True, slots=True)
class TaskProcess:
    """The process of one task try, as Airflow knows it; all absent if it knows nothing of the try."""

    state: str | None = None
    """None once the try is history."""
    pid: int | None = None
    hostname: str = ""
    started_at: datetime | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the try is still to run or running."""
        return self.state in (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


def task_processes(session: Session, ids: Collection[str]) -> dict[str, TaskProcess]:
    """Task instance id → its process, for those ids that Airflow still knows, past tries included."""
    if not ids:
        return {}
    uuids = [UUID(id_) for id_ in ids]
    found: dict[str, TaskProcess] = {}
    past = select(
        TaskInstanceHistory.task_instance_id,
        TaskInstanceHistory.pid,
        TaskInstanceHistory.hostname,
        TaskInstanceHistory.start_date,
    ).where(TaskInstanceHistory.task_instance_id.in_(uuids))
    for id_, pid, hostname, started_at in session.execute(past):
        found[str(id_)] = TaskProcess(None, pid, hostname or "", started_at)
    present = select(
        TaskInstance.id, TaskInstance.state, TaskInstance.pid, TaskInstance.hostname, TaskInstance.start_date
    ).where(TaskInstance.id.in_(uuids))
    for id_, state, pid, hostname, started_at in session.execute(present):
        found[str(id_)] = TaskProcess(state, pid, hostname or "", started_at)
    return found


def queued_ids(session: Session, ids: Collection[str]) -> set[str]:
    """Which of these task instances are still QUEUED."""
    if not ids:
        return set()
    query = select(TaskInstance.id).where(
        TaskInstance.id.in_([UUID(id_) for id_ in ids]), TaskInstance.state == TaskInstanceState.QUEUED
    )
    return {str(id_) for id_ in session.scalars(query)}


def refresh_queued(session: Session, ids: Iterable[str], now: datetime) -> None:
    """Tell Airflow that these held tasks are not stuck, or its time limit for QUEUED would revoke them."""
    session.execute(
        update(TaskInstance)
        .where(TaskInstance.id.in_([UUID(id_) for id_ in ids]), TaskInstance.state == TaskInstanceState.QUEUED)
        .values(queued_dttm=now)
        .execution_options(synchronize_session=False)
    )


def record_lease(session: Session, workload: ExecuteTask, lease: TaskLease) -> None:
    """Leave the task a record of its lease in its state store, where retries and Airflow's UI find it."""
    ti = workload.ti
    scope = TaskScope(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)
    get_state_backend().set(scope, STATE_KEY, lease.model_dump_json(), session=session)
