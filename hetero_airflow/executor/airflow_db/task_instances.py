"""Reads and writes Airflow's task instances."""

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.taskreschedule import TaskReschedule
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import ColumnElement, and_, func, or_, select, update

from hetero_airflow.contract.state_keys import LEASE
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.executor.airflow_db.state_store import StateCalls, write_state
from hetero_airflow.executor.airflow_db.template_context import read_context
from hetero_airflow.model.gang import GangMember, gang_member

_MAX_GANGS = 100
"""The gangs in one query: databases limit the size of a statement."""

_TO_RUN_AGAIN = (
    TaskInstanceState.SCHEDULED,
    TaskInstanceState.UP_FOR_RETRY,
    TaskInstanceState.UP_FOR_RESCHEDULE,
    TaskInstanceState.DEFERRED,
    TaskInstanceState.AWAITING_INPUT,
)


@dataclass(frozen=True, slots=True)
class TaskProcess:
    """The process of one task try, as Airflow knows it. All fields are empty if Airflow does not know the try."""

    state: str | None = None
    """None if the try is over."""
    pid: int | None = None
    hostname: str = ""
    seen_at: datetime | None = None
    """The time of its last heartbeat. Its start is no use: a task that was deferred keeps its first one."""

    @property
    def is_wanted(self) -> bool:
        """Whether the try is to run, or runs."""
        return self.state in (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)

    @property
    def is_to_run_again(self) -> bool:
        """Whether the run is over, and Airflow schedules the next one now or later, perhaps in another process.

        Airflow must get no report of the end then: it would take it for the end of the coming run, and spend a try.
        """
        return self.state in _TO_RUN_AGAIN


class TaskInstances:
    """Airflow's task instances, in short sessions of its own: the scoped session belongs to the scheduler."""

    def processes(self, ids: Collection[str]) -> dict[str, TaskProcess]:
        """Task instance id → its process, for the ids that Airflow still knows, including past tries."""
        if not ids:
            return {}
        past = select(
            TaskInstanceHistory.task_instance_id,
            TaskInstanceHistory.pid,
            TaskInstanceHistory.hostname,
            func.coalesce(TaskInstanceHistory.end_date, TaskInstanceHistory.updated_at, TaskInstanceHistory.start_date),
        ).where(TaskInstanceHistory.task_instance_id.in_(_uuids(ids)))
        present = select(
            TaskInstance.id,
            TaskInstance.state,
            TaskInstance.pid,
            TaskInstance.hostname,
            func.coalesce(TaskInstance.last_heartbeat_at, TaskInstance.start_date),
        ).where(TaskInstance.id.in_(_uuids(ids)))
        processes: dict[str, TaskProcess] = {}
        with create_session(scoped=False) as session:
            for id_, pid, hostname, seen_at in session.execute(past):
                processes[str(id_)] = TaskProcess(None, pid, hostname or "", seen_at)
            for id_, state, pid, hostname, seen_at in session.execute(present):
                processes[str(id_)] = TaskProcess(state, pid, hostname or "", seen_at)
        return processes

    def ended_since(self, ids: Collection[str], since: datetime) -> set[str]:
        """The ids of these tasks whose tries have ended since then. Their processes may still be there."""
        if not ids:
            return set()
        running = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)
        present = select(TaskInstance.id).where(
            TaskInstance.id.in_(_uuids(ids)), TaskInstance.state.not_in(running), TaskInstance.end_date >= since
        )
        past = select(TaskInstanceHistory.task_instance_id).where(
            TaskInstanceHistory.task_instance_id.in_(_uuids(ids)), TaskInstanceHistory.end_date >= since
        )
        return {str(id_) for query in (present, past) for (id_,) in _read(query)}

    def queued(self, ids: Collection[str]) -> set[str]:
        """The ids of these tasks that are still QUEUED."""
        if not ids:
            return set()
        return {str(id_) for (id_,) in _read(select(TaskInstance.id).where(_are(ids, TaskInstanceState.QUEUED)))}

    def members(self, members: Collection[GangMember]) -> dict[str, dict[int, str | None]]:
        """Gang → rank → state of the existing task instances of the gangs; None: not scheduled yet."""
        gangs = {(member.dag_id, member.run_id, member.task_id, member.first_index): member.size for member in members}
        states: dict[str, dict[int, str | None]] = {member.gang: {} for member in members}
        names = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
        with create_session(scoped=False) as session:
            for at in range(0, len(gangs), _MAX_GANGS):
                batch = list(gangs.items())[at : at + _MAX_GANGS]
                conditions = [
                    and_(
                        *(column == name for column, name in zip(names, key, strict=False)),
                        TaskInstance.map_index.between(first_index := key[3], first_index + size - 1),
                    )
                    for key, size in batch
                ]
                query = select(*names, TaskInstance.map_index, TaskInstance.state).where(or_(*conditions))
                sizes = {key[:3]: size for key, size in batch}
                for dag_id, run_id, task_id, index, state in session.execute(query):
                    member = gang_member(dag_id, run_id, task_id, index, sizes[dag_id, run_id, task_id])
                    states[member.gang][member.rank] = state
        return states

    def refresh_queued(self, ids: Collection[str], now: datetime) -> None:
        """Show Airflow that tasks which are still QUEUED are not stuck: else it revokes them after its time limit."""
        if ids:
            _update(ids, TaskInstanceState.QUEUED, queued_dttm=now)

    def refresh_running(self, ids: Collection[str], now: datetime) -> None:
        """Show Airflow that tasks which are RUNNING are not lost, while no heartbeat of theirs can arrive."""
        if ids:
            _update(ids, TaskInstanceState.RUNNING, last_heartbeat_at=now)

    def record_leases(self, leases: Iterable[tuple[ExecuteTask, TaskLease]], states: StateCalls) -> None:
        """Record the lease of each task in its state store, for retries and for Airflow's UI.

        A record that can't be written is logged and skipped: the lease itself is in the store.
        """
        for workload, lease in leases:
            write = partial(write_state, workload.ti, LEASE, lease.model_dump_json())
            loss = f"The lease of {workload.ti.key} can't be recorded in the task state store"
            states.keep((workload.ti.key, LEASE), write, loss)

    def epochs(self, ids: Collection[str]) -> dict[str, int]:
        """Task instance id → its `max_tries`, which grows when the task is cleared; for the existing ones."""
        if not ids:
            return {}
        query = select(TaskInstance.id, TaskInstance.max_tries).where(TaskInstance.id.in_(_uuids(ids)))
        return {str(id_): max_tries for id_, max_tries in _read(query)}

    def rescheduled(self, ids: Collection[str]) -> list[str]:
        """The ids of these tasks that were rescheduled before, in the same order."""
        if not ids:
            return []
        query = select(TaskReschedule.ti_id).where(TaskReschedule.ti_id.in_(_uuids(ids))).distinct()
        rescheduled = {str(id_) for (id_,) in _read(query)}
        return [id_ for id_ in ids if id_ in rescheduled]

    def reschedule(self, id: str, now: datetime, at: datetime, *, even_queued: bool = False) -> bool:
        """Reschedule a running task at a time, with the same try. Returns whether it still ran.

        Airflow refuses the next heartbeat of its supervisor, which then stops the process.

        :param even_queued: also a task of which Airflow does not know yet that it runs
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
        """Mark the tasks that are still QUEUED as successful: they are not needed any more."""
        state = TaskInstanceState.SUCCESS
        _update(ids, TaskInstanceState.QUEUED, state=state, start_date=now, end_date=now, duration=0.0)

    def trace_carrier(self, id: str) -> Mapping[str, Any] | None:
        """The `context_carrier` of a try, present or past; None if Airflow does not know it. See `LeaseSpans`."""
        present = select(TaskInstance.context_carrier).where(TaskInstance.id == UUID(id))
        past = select(TaskInstanceHistory.context_carrier).where(TaskInstanceHistory.task_instance_id == UUID(id))
        rows = _read(present) or _read(past)
        return rows[0].context_carrier if rows else None

    def template_context(
        self, dag_id: str, run_id: str, defaults: MutableMapping[str, Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """What templates in device arguments may use in a DAG run; see `read_context`."""
        with create_session(scoped=False) as session:
            return read_context(session, dag_id, run_id, defaults)


def _uuids(ids: Collection[str]) -> list[UUID]:
    return [UUID(id_) for id_ in ids]


def _are(ids: Collection[str], state: TaskInstanceState) -> ColumnElement[bool]:
    return and_(TaskInstance.id.in_(_uuids(ids)), TaskInstance.state == state)


def _read(query: Any) -> Sequence[Any]:
    with create_session(scoped=False) as session:
        return session.execute(query).all()


def _update(ids: Collection[str], where: TaskInstanceState, **values: object) -> None:
    """Change those of the tasks that are in a state."""
    statement = update(TaskInstance).where(_are(ids, where)).values(values)
    with create_session(scoped=False) as session:
        session.execute(statement.execution_options(synchronize_session=False))
