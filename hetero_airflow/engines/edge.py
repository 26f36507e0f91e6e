"""The engine for edge workers, which ask Airflow's API server for work: EdgeExecutor, wrapped, one queue a worker.

All knowledge of EdgeExecutor's tables and keys sits here, since Airflow 3.4 changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.providers.edge3.executors.edge_executor import EdgeExecutor
from airflow.providers.edge3.models.edge_job import EdgeJobModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import ColumnElement, delete, update
from sqlalchemy.orm import Session

from hetero_airflow.engines.engine import EngineTraits, Liveness, Surroundings, Use
from hetero_airflow.engines.queues import queue_of
from hetero_airflow.engines.remote import START_S, RemoteLeases
from hetero_airflow.errors import EngineError
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

NAME = "edge"

_COMMAND: int = EdgeJobModel.__table__.c.command.type.length
"""Characters of a workload that EdgeExecutor's table takes."""


class EdgeEngine:
    """Puts what it is given into the table from which the edge worker that was decided takes its jobs."""

    traits = EngineTraits(supports_callbacks=True, start_s=START_S)

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        self.executor = EdgeExecutor(parallelism, team_name)
        self._leases = RemoteLeases()

    def start(self, surroundings: Surroundings) -> None:
        """Start EdgeExecutor, which makes its tables where they are missing."""
        self._surroundings = surroundings
        surroundings.introduce(self.executor)
        self.executor.start()

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device, exactly as EdgeExecutor alone would."""
        self.executor.queue_workload(workload, session)

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Make a job for the worker's own queue.

        :raises EngineError: the job does not fit into EdgeExecutor's table
        """
        length = len(workload.model_dump_json())
        if length > _COMMAND:
            raise EngineError(
                f"a job for edge worker {worker.id} with {len(lease.claims)} devices",
                found=f"{length} characters; EdgeExecutor's table takes {_COMMAND}",
                remedy="Ask for fewer devices in one task, or use the engine celery",
            )
        self._leases.hand_over(workload.key, lease)
        with create_session(scoped=False) as session:
            self.executor.queue_workload(workload, session)
            session.flush()
            session.execute(update(EdgeJobModel).where(*_job(workload.key)).values(queue=queue_of(worker.id)))

    def hand_back(self, workload: ExecuteTask) -> None:
        """Make a job for the queue that the task names."""
        with create_session(scoped=False) as session:
            self.executor.queue_workload(workload, session)

    def withdraw(self, key: Any) -> bool:
        """Take back a job that no worker has taken yet; whether none had."""
        is_waiting = EdgeJobModel.state == TaskInstanceState.QUEUED
        with create_session(scoped=False) as session:
            gone = session.execute(delete(EdgeJobModel).where(*_job(key), is_waiting).returning(EdgeJobModel.task_id))
            was_there = bool(gone.all())
        if was_there:
            self.executor.running.discard(key)
            self._leases.note_over(key)
        return was_there

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """What ended since the last call, as EdgeExecutor's table says."""
        self.executor.sync()
        return self._ended()

    def heartbeat(self) -> None:
        """Nothing: workers fetch their jobs."""

    def has_task(self, task_instance: Any) -> bool:
        """Whether EdgeExecutor still has the task."""
        return bool(self.executor.has_task(task_instance))

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Follow jobs that another scheduler made; the tasks without one are returned."""
        return self.executor.try_adopt_task_instances(task_instances)

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self.executor.fail_connection_test(key)

    @property
    def occupied(self) -> int:
        """Workloads that EdgeExecutor counts as its own, without device tasks."""
        return int(self.executor.slots_occupied) - sum(key in self.executor.running for key in self._leases)

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker's agent says that an edge worker runs there."""
        return worker.engine == NAME

    def open_slots(self) -> int | None:
        """Any number: each worker has its own slots."""
        return None

    def look(self, uses: Sequence[Use]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, as agents and EdgeExecutor say."""
        return self._leases.look(uses, self._surroundings)

    def signal(self, use: Use, number: int) -> None:
        """Nothing: the supervisor and the agent on the worker end what outlives its task or its lease."""

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave what runs to the next scheduler, as EdgeExecutor does; what had ended."""
        self.executor.end()
        return self._ended()

    def terminate(self) -> None:
        """Stop without waiting."""
        self.executor.terminate()

    def _ended(self) -> dict[Any, tuple[Any, Any]]:
        events = dict(self.executor.get_event_buffer())
        for key, (state, _) in events.items():
            # not to be taken for the end of its processes: a worker that was cut off may speak of the run before
            if state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
                self._leases.end(key)
        return events


def _job(key: Any) -> tuple[ColumnElement[bool], ...]:
    return (
        EdgeJobModel.dag_id == key.dag_id,
        EdgeJobModel.task_id == key.task_id,
        EdgeJobModel.run_id == key.run_id,
        EdgeJobModel.map_index == key.map_index,
        EdgeJobModel.try_number == key.try_number,
    )
