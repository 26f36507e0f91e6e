"""The engine for edge workers, which ask Airflow's API server for work: EdgeExecutor, wrapped, one queue a worker.

All knowledge of EdgeExecutor's tables and keys sits here, since Airflow 3.4 changes them.
"""

from __future__ import annotations

from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.providers.edge3.executors.edge_executor import EdgeExecutor
from airflow.providers.edge3.models.edge_job import EdgeJobModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import ColumnElement, delete, update

from hetero_airflow.engines.engine import EngineTraits
from hetero_airflow.engines.queues import worker_queue
from hetero_airflow.engines.remote import START_TIMEOUT_S, RemoteEngine
from hetero_airflow.errors import EngineError
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

_MAX_COMMAND_LENGTH: int = EdgeJobModel.__table__.c.command.type.length
"""Characters of a workload that EdgeExecutor's table takes."""


class EdgeEngine(RemoteEngine):
    """Puts what it is given into the table from which the edge worker that was decided takes its jobs.

    That a job ended is not taken for the end of its processes: a worker that was cut off may speak of the run before.
    """

    name = "edge"
    traits = EngineTraits(supports_callbacks=True, start_s=START_TIMEOUT_S)

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        super().__init__(EdgeExecutor(parallelism, team_name))

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Make a job for the worker's own queue.

        :raises EngineError: the job does not fit into EdgeExecutor's table
        """
        length = len(workload.model_dump_json())
        if length > _MAX_COMMAND_LENGTH:
            raise EngineError(
                f"a job for edge worker {worker.id} with {len(lease.claims)} devices",
                found=f"{length} characters; EdgeExecutor's table takes {_MAX_COMMAND_LENGTH}",
                remedy="Ask for fewer devices in one task, or use the engine celery",
            )
        self.leases.hand_over(workload.key, lease)
        with create_session(scoped=False) as session:
            self.executor.queue_workload(workload, session)
            session.flush()
            session.execute(update(EdgeJobModel).where(*_job(workload.key)).values(queue=worker_queue(worker.id)))

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
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
            self.leases.withdraw(key)
        return was_there

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """What ended since the last call, as EdgeExecutor's table says."""
        self.executor.sync()
        return self.ended()

    def heartbeat(self) -> None:
        """Nothing: workers fetch their jobs."""

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave what runs to the next scheduler, as EdgeExecutor does; what had ended."""
        self.executor.end()
        return self.ended()


def _job(key: Any) -> tuple[ColumnElement[bool], ...]:
    return (
        EdgeJobModel.dag_id == key.dag_id,
        EdgeJobModel.task_id == key.task_id,
        EdgeJobModel.run_id == key.run_id,
        EdgeJobModel.map_index == key.map_index,
        EdgeJobModel.try_number == key.try_number,
    )
