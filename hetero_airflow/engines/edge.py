"""The engine for edge workers, which fetch work from Airflow's API server: EdgeExecutor, with one queue per worker.

Only this module knows EdgeExecutor's tables and keys, because Airflow 3.4 changes them.
"""

from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.providers.edge3.executors.edge_executor import EdgeExecutor
from airflow.providers.edge3.models.edge_job import EdgeJobModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import ColumnElement, delete, update
from sqlalchemy.orm import Session

from hetero_airflow.engines.engine import EngineTraits
from hetero_airflow.engines.remote import RemoteEngine, worker_queue
from hetero_airflow.errors import EngineError
from hetero_airflow.model.grant import START_TIMEOUT_S
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker


class EdgeEngine(RemoteEngine):
    """Puts each device task into the table from which the chosen edge worker takes its jobs.

    The table has one row for all runs of a try, and a worker's report does not name the run. So the end of a job is no
    proof that the current run has ended: a worker that was cut off may report an earlier one.
    """

    name = "edge"
    traits = EngineTraits(supports_callbacks=True, names_runs=False, start_timeout_s=START_TIMEOUT_S)

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        super().__init__(LeasedEdgeExecutor(parallelism, team_name))  # type: ignore[no-untyped-call]

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Make a job in the worker's queue.

        :raises EngineError: the job does not fit into EdgeExecutor's table
        """
        length, limit = len(workload.model_dump_json()), EdgeJobModel.__table__.c.command.type.length
        if limit is not None and length > limit:  # the column has no limit since edge3 5.2
            raise EngineError(
                f"to send edge worker {worker.id} a job with {len(lease.claims)} devices",
                found=f"{length} characters; EdgeExecutor's table takes {limit}",
                remedy="Ask for fewer devices in one task, or use the engine celery",
            )
        self._note_sent(workload.key, lease)
        with create_session(scoped=False) as session:
            self._make_job(workload, worker_queue(worker.id), session)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Make a job in the queue that the task names."""
        with create_session(scoped=False) as session:
            self._make_job(workload, workload.ti.queue, session)

    def _make_job(self, workload: ExecuteTask, queue: str, session: Session) -> None:
        """Make a job that no worker has fetched. The table may have one of an earlier run of the task."""
        self.executor.last_reported_state.pop(workload.key, None)
        self.executor.queue_workload(workload, session)
        session.flush()
        new_job = {"queue": queue, "edge_worker": None, "last_update": None}
        session.execute(update(EdgeJobModel).where(*_job(workload.key)).values(new_job))

    def withdraw(self, key: Any) -> bool:
        """Take back a job that no worker has taken. Returns whether none had."""
        is_waiting = EdgeJobModel.state == TaskInstanceState.QUEUED
        with create_session(scoped=False) as session:
            delete_job = delete(EdgeJobModel).where(*_job(key), is_waiting).returning(EdgeJobModel.task_id)
            was_there = bool(session.execute(delete_job).all())
        if was_there:
            self.executor.running.discard(key)
            self._note_withdrawn(key)
        return was_there

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """The tasks that ended since the last call, from EdgeExecutor's table."""
        self.executor.sync()
        for key in [key for key in self.executor.event_buffer if key in self._leases]:
            self._requeue_unfetched(key)
        return self.take_events()

    def _requeue_unfetched(self, key: Any) -> None:
        """Queue a job again that no worker has fetched, and drop its event: it is the report of an earlier run."""
        is_unfetched = EdgeJobModel.edge_worker.is_(None), EdgeJobModel.state != TaskInstanceState.QUEUED
        requeue = update(EdgeJobModel).where(*_job(key), *is_unfetched).values(state=TaskInstanceState.QUEUED)
        with create_session(scoped=False) as session:
            was_overwritten = bool(session.execute(requeue.returning(EdgeJobModel.task_id)).all())
        if was_overwritten:
            del self.executor.event_buffer[key]
            self.executor.running.add(key)

    def heartbeat(self) -> None:
        """Do nothing: workers fetch their jobs."""

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave running tasks to the next scheduler, as EdgeExecutor does. Returns the tasks that had ended."""
        self.executor.end()
        return self.take_events()


class LeasedEdgeExecutor(EdgeExecutor):
    """EdgeExecutor that lets no worker fetch a job again which it has had under an earlier lease."""

    def _update_orphaned_jobs(self, session: Session) -> bool:
        """Give old jobs the state of their tasks; but a job of a task that waits again must not go to its old queue."""
        is_changed = super()._update_orphaned_jobs(session)
        if is_changed:
            is_old = EdgeJobModel.state == TaskInstanceState.QUEUED, EdgeJobModel.last_update.is_not(None)
            is_placed = EdgeJobModel.queue.startswith(worker_queue(""), autoescape=True)
            values = {"state": TaskInstanceState.REMOVED}
            session.execute(update(EdgeJobModel).where(*is_old, is_placed).values(values))
        return is_changed


def _job(key: Any) -> tuple[ColumnElement[bool], ...]:
    return (
        EdgeJobModel.dag_id == key.dag_id,
        EdgeJobModel.task_id == key.task_id,
        EdgeJobModel.run_id == key.run_id,
        EdgeJobModel.map_index == key.map_index,
        EdgeJobModel.try_number == key.try_number,
    )
