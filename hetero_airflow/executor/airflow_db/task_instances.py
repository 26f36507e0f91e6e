"""What Airflow's database says of task instances."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.taskreschedule import TaskReschedule
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import and_, func, or_, select, update

from hetero_airflow.contract.state_keys import LEASE
from hetero_airflow.executor.airflow_db.state_store import write_state
from hetero_airflow.executor.airflow_db.templates import render_request
from hetero_airflow.model.gang import GangMember, gang_member
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.runtime.task_lease import TaskLease

log = logging.getLogger(__name__)

_MAX_GANGS = 100
"""That one query asks for: databases have a limit on a statement's size."""


@dataclass(frozen=True, slots=True)
class TaskProcess:
    """The process of one task try, as Airflow knows it; all absent if it knows nothing of the try."""

    state: str | None = None
    """None once the try is history."""
    pid: int | None = None
    hostname: str = ""
    seen_at: datetime | None = None
    """When Airflow last heard of the process; not its start, since a task that was deferred keeps its first one."""

    @property
    def is_wanted(self) -> bool:
        """Whether the try is still to run or running."""
        return self.state in (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


class TaskInstances:
    """Airflow's task instances, read and written in short sessions of our own.

    The scoped session is the scheduler's, in the middle of its work.
    """

    def processes(self, ids: Collection[str]) -> dict[str, TaskProcess]:
        """Task instance id → its process, for those ids that Airflow still knows, past tries included."""
        if not ids:
            return {}
        uuids = [UUID(id_) for id_ in ids]
        past = select(
            TaskInstanceHistory.task_instance_id,
            TaskInstanceHistory.pid,
            TaskInstanceHistory.hostname,
            func.coalesce(TaskInstanceHistory.end_date, TaskInstanceHistory.updated_at, TaskInstanceHistory.start_date),
        ).where(TaskInstanceHistory.task_instance_id.in_(uuids))
        present = select(
            TaskInstance.id,
            TaskInstance.state,
            TaskInstance.pid,
            TaskInstance.hostname,
            func.coalesce(TaskInstance.last_heartbeat_at, TaskInstance.start_date),
        ).where(TaskInstance.id.in_(uuids))
        found: dict[str, TaskProcess] = {}
        with create_session(scoped=False) as session:
            for id_, pid, hostname, seen_at in session.execute(past):
                found[str(id_)] = TaskProcess(None, pid, hostname or "", seen_at)
            for id_, state, pid, hostname, seen_at in session.execute(present):
                found[str(id_)] = TaskProcess(state, pid, hostname or "", seen_at)
        return found

    def queued(self, ids: Collection[str]) -> set[str]:
        """Which of these are still QUEUED."""
        if not ids:
            return set()
        query = select(TaskInstance.id).where(
            TaskInstance.id.in_([UUID(id_) for id_ in ids]), TaskInstance.state == TaskInstanceState.QUEUED
        )
        with create_session(scoped=False) as session:
            return {str(id_) for id_ in session.scalars(query)}

    def members(self, seats: Collection[GangMember]) -> dict[str, dict[int, str | None]]:
        """Gang → rank → state, of those task instances that are there; a state of None is one to be scheduled."""
        leaders = {(seat.dag_id, seat.run_id, seat.task_id, seat.first_index): seat for seat in seats}
        found: dict[str, dict[int, str | None]] = {seat.gang: {} for seat in seats}
        names = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
        with create_session(scoped=False) as session:
            for at in range(0, len(leaders), _MAX_GANGS):
                batch = list(leaders.items())[at : at + _MAX_GANGS]
                chosen = [
                    and_(
                        *(column == name for column, name in zip(names, key, strict=False)),
                        TaskInstance.map_index.between(seat.first_index, seat.first_index + seat.size - 1),
                    )
                    for key, seat in batch
                ]
                query = select(*names, TaskInstance.map_index, TaskInstance.state).where(or_(*chosen))
                sizes = {key[:3]: seat.size for key, seat in batch}
                for dag_id, run_id, task_id, index, state in session.execute(query):
                    size = sizes[dag_id, run_id, task_id]
                    seat = gang_member(dag_id, run_id, task_id, index, size)
                    found[seat.gang][seat.rank] = state
        return found

    def refresh_queued(self, ids: Collection[str], now: datetime) -> None:
        """Tell Airflow that those of these that are still QUEUED are not stuck, or its time limit would revoke them."""
        if not ids:
            return
        statement = (
            update(TaskInstance)
            .where(TaskInstance.id.in_([UUID(id_) for id_ in ids]), TaskInstance.state == TaskInstanceState.QUEUED)
            .values(queued_dttm=now)
            .execution_options(synchronize_session=False)
        )
        with create_session(scoped=False) as session:
            session.execute(statement)

    def record_leases(self, leases: Iterable[tuple[ExecuteTask, TaskLease]]) -> None:
        """Leave each task a record of its lease in its state store, where retries and Airflow's UI find it.

        What can't be recorded is logged and passed over: the lease itself is in our own tables.
        """
        for workload, lease in leases:
            try:
                write_state(workload.ti, LEASE, lease.model_dump_json())
            except Exception as error:  # noqa: BLE001  the backend may be anybody's
                log.warning("The lease of %s is not on record in the task state store: %s", workload.ti.key, error)

    def epochs(self, ids: Collection[str]) -> dict[str, int]:
        """Task instance id → its `max_tries`, which grows when the task is cleared; for those that are there."""
        if not ids:
            return {}
        query = select(TaskInstance.id, TaskInstance.max_tries).where(TaskInstance.id.in_([UUID(id_) for id_ in ids]))
        with create_session(scoped=False) as session:
            return {str(id_): max_tries for id_, max_tries in session.execute(query)}

    def rescheduled(self, ids: Collection[str]) -> list[str]:
        """Which of these were sent back to be scheduled before, in the order given."""
        if not ids:
            return []
        query = select(TaskReschedule.ti_id).where(TaskReschedule.ti_id.in_([UUID(id_) for id_ in ids])).distinct()
        with create_session(scoped=False) as session:
            found = {str(id_) for id_ in session.scalars(query)}
        return [id_ for id_ in ids if id_ in found]

    def reschedule(self, id: str, now: datetime, at: datetime, *, even_queued: bool = False) -> bool:
        """Send a task that runs back to be scheduled again, with the same try, from a time on; whether it still ran.

        Its supervisor's next heartbeat is refused, upon which it stops the process.

        :param even_queued: also one of which Airflow has not heard that it runs
        """
        states = (TaskInstanceState.RUNNING, *([TaskInstanceState.QUEUED] if even_queued else []))
        with create_session(scoped=False) as session:
            ti = session.scalar(select(TaskInstance).where(TaskInstance.id == UUID(id)).with_for_update())
            if ti is None or ti.state not in states:
                return False
            session.add(TaskReschedule(ti.id, ti.start_date or now, now, at))
            ti.state = TaskInstanceState.UP_FOR_RESCHEDULE
            ti.end_date = now
            ti.next_method = ti.next_kwargs = None
            return True

    def finish(self, ids: Collection[str], now: datetime) -> None:
        """Have Airflow take those of these that are still QUEUED for done: they are not needed any more."""
        statement = (
            update(TaskInstance)
            .where(TaskInstance.id.in_([UUID(id_) for id_ in ids]), TaskInstance.state == TaskInstanceState.QUEUED)
            .values(state=TaskInstanceState.SUCCESS, start_date=now, end_date=now, duration=0.0)
            .execution_options(synchronize_session=False)
        )
        with create_session(scoped=False) as session:
            session.execute(statement)

    def render(self, workload: ExecuteTask, arguments: Mapping[str, Any]) -> DeviceRequest:
        """The request that arguments with templates make in the task's DAG run.

        :raises RequestError: a template that can't be rendered, or a rendered request that is not valid
        """
        with create_session(scoped=False) as session:
            return render_request(session, workload.ti.dag_id, workload.ti.run_id, arguments)
