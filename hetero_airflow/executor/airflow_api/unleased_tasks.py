"""Tasks that run without a lease: those that ask for no device, and placement checks that have their answer."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from hetero_airflow.clock import Clock
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.task_log import SchedulerCallbacks, write_task_log

log = logging.getLogger(__name__)

_MAX_SENT = 10_000
"""Number of tasks that are remembered because the engine has not reported their end."""

_RETRY_TIME = timedelta(minutes=1)
"""A supervisor that could not reach the API server may ask again for this long after the server is back."""


@dataclass
class UnleasedTasks:
    """Passes tasks on to the engine. While Airflow's API server is away, they wait here, with the same try."""

    engine: AirflowEngine
    tasks: TaskInstances
    api: ExecutionApiWatch
    callbacks: SchedulerCallbacks
    clock: Clock
    waiting: dict[Any, ExecuteTask] = field(default_factory=dict)
    """Key → the task, until a server answers."""
    _sent: dict[Any, tuple[ExecuteTask, datetime]] = field(default_factory=dict)
    """Key → the task, and when the engine got it, until the engine reports its end."""

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device. Runs inside the scheduler's transaction."""
        if not isinstance(workload, ExecuteTask):
            self.engine.accept(workload, session)
        elif self.api.outage is not None:
            self.waiting[workload.key] = workload
        else:
            self._note_sent(workload)
            self.engine.accept(workload, session)

    def hand_over(self, workload: ExecuteTask) -> None:
        """Give the engine a task that waited, with a new token. It starts at the engine's next `heartbeat`."""
        self.callbacks.renew_token(workload, None)
        self._note_sent(workload)
        self.engine.hand_over_unplaced(workload)

    def hand_over_waiting(self) -> None:
        """Give the engine all tasks that wait here and that Airflow still wants. A server answers."""
        queued = self.tasks.queued([str(workload.ti.id) for workload in self.waiting.values()])
        for key, workload in list(self.waiting.items()):
            if str(workload.ti.id) in queued:
                self.hand_over(workload)
            del self.waiting[key]

    def delayed_ids(self) -> list[str]:
        """Ids of the tasks that wait here, and of those whose supervisors may wait for a server since an outage."""
        tasks = [*self.waiting.values()]
        if self.api.outage is not None or self.api.has_failed_since(self.clock.now() - _RETRY_TIME):
            tasks += [task for task, sent_at in self._sent.values() if self.api.has_failed_since(sent_at)]
        return [str(task.ti.id) for task in tasks]

    def drop(self, key: Any) -> None:
        """Forget a task that Airflow does not want any more."""
        self.waiting.pop(key, None)
        self._sent.pop(key, None)

    def keep_again(self, key: Any, state: Any) -> bool:
        """Keep a task again that its supervisor could not start because the API server was away.

        Airflow still has such a task QUEUED, and would fail it. Returns whether that was done. Any other end is final.
        """
        workload, sent_at = self._sent.pop(key, (None, None))
        if workload is None or sent_at is None or state != TaskInstanceState.FAILED:
            return False
        id_ = str(workload.ti.id)
        if not self.api.has_failed_since(sent_at):
            return False
        try:
            if id_ not in self.tasks.queued([id_]):
                return False
        except SQLAlchemyError as error:  # it is asked again before the task starts
            log.warning("Airflow's database does not say whether %s has begun: %s", key, type(error).__name__)
        text = "It could not start, since Airflow's API server did not answer. It waits again. This uses no retry."
        write_task_log(workload.log_path, text, self.clock.now(), "warning")
        self.waiting[key] = workload
        return True

    def _note_sent(self, workload: ExecuteTask) -> None:
        self._sent[workload.key] = (workload, self.clock.now())
        if len(self._sent) > _MAX_SENT:
            self._sent.pop(next(iter(self._sent)), None)
