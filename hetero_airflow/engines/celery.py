"""The engine for Celery workers: Airflow's CeleryExecutor, with one queue for each worker.

Only this module knows CeleryExecutor's queues and keys, because Airflow 3.4 changes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from airflow.executors.workloads import ExecuteTask
from airflow.providers.celery.executors.celery_executor import CeleryExecutor
from airflow.providers.celery.executors.celery_executor_utils import OPERATION_TIMEOUT
from airflow.providers.common.compat.sdk import AirflowTaskTimeout, timeout
from airflow.utils.state import TaskInstanceState
from celery import states

from hetero_airflow.engines.engine import EngineTraits
from hetero_airflow.engines.remote import START_TIMEOUT_S, RemoteEngine, worker_queue
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

log = logging.getLogger(__name__)


class CeleryEngine(RemoteEngine):
    """Sends each device task to the Celery worker that the policy chose."""

    name = "celery"
    traits = EngineTraits(
        supports_callbacks=True, pre_assigns_external_executor_id=True, start_timeout_s=START_TIMEOUT_S
    )

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        super().__init__(RoutingCeleryExecutor(parallelism, team_name))
        self._outage = ""

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a worker; it is sent at the next `heartbeat`."""
        if workload.key in self.leases:  # an earlier message of it has expired: Celery's result for that id is not ours
            workload.ti.external_executor_id = str(uuid4())
        self.leases.hand_over(workload.key, lease)
        self.executor.queues[workload.key] = worker_queue(worker.id)
        self.hand_over_unplaced(workload)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that waited; it is sent to the queue that it names at the next `heartbeat`."""
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task that was not sent yet. Returns whether it was still here.

        If it was sent, the workers are asked to skip it; `collect` and `liveness_of` show the result.
        """
        was_there = self.executor.queued_tasks.pop(key, None) is not None
        if was_there:
            self.executor.queues.pop(key, None)
            self.leases.withdraw(key)
        else:
            self._tolerate_outage(lambda: self.executor.revoke(key))
        return was_there

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """The tasks that ended since the last call, from Celery's result backend."""
        self._tolerate_outage(self.executor.sync)
        return self.take_events()

    def heartbeat(self) -> None:
        """Send the tasks that were handed over."""
        self._tolerate_outage(
            lambda: self.executor.trigger_tasks(self.executor.parallelism - len(self.executor.running))
        )

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave running tasks to the next scheduler, as CeleryExecutor does. Returns the tasks that had ended."""
        self._tolerate_outage(self.executor.end)
        return self.take_events()

    def take_events(self) -> dict[Any, tuple[Any, Any]]:
        """The executor's events since the last call. After a normal end no process of the task is left."""
        for key in self.executor.undelivered:
            self.leases.note_finished(key)
        self.executor.undelivered.clear()
        for key, (state, _) in self.executor.event_buffer.items():
            if state == TaskInstanceState.SUCCESS:  # its supervisor has ended, whatever the task's own result is
                self.leases.note_finished(key)
        return super().take_events()

    def _tolerate_outage(self, step: Callable[[], object]) -> None:
        """Run a step. If a broker or backend does not answer, log one warning and keep the scheduler's loop."""
        try:
            step()
        except (Exception, AirflowTaskTimeout) as error:  # noqa: BLE001  transports and backends raise their libraries'
            text = f"{type(error).__name__}: {error}"
            if text != self._outage:
                log.warning("Celery's broker or result backend does not answer: %s. Running tasks go on.", text)
            self._outage = text
        else:
            self._outage = ""


class RoutingCeleryExecutor(CeleryExecutor):
    """CeleryExecutor that sends each placed task to its worker's queue, with a message that expires soon."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.queues: dict[Any, str] = {}
        """Key → Celery queue, of placed tasks that were not sent yet."""
        self.undelivered: set[Any] = set()
        """Placed tasks that never reached a worker process, and never will."""
        self._placed: set[Any] = set()

    def _send_workloads_to_celery(self, workload_tuples_to_send: Sequence[Any]) -> list[Any]:
        plain = [item for item in workload_tuples_to_send if item[0] not in self.queues]
        placed = [item for item in workload_tuples_to_send if item[0] in self.queues]
        sent = list(super()._send_workloads_to_celery(plain)) if plain else []
        error: BaseException | None = None
        for key, workload, _, _ in placed:
            queue = self.queues.pop(key)
            if error is None:
                try:
                    sent.append((key, workload, self._send(workload, queue)))
                    self._placed.add(key)
                    continue
                except (Exception, AirflowTaskTimeout) as caught:  # noqa: BLE001  the transport's own
                    error = caught
            del self.queued_tasks[key]
            self.undelivered.add(key)
        if error is not None:
            log.warning("Placed tasks could not be sent and wait again: %s: %s", type(error).__name__, error)
        return sent

    def _send(self, workload: ExecuteTask, queue: str) -> Any:
        """Send a task that must start within `START_TIMEOUT_S`. A worker that comes back later finds it expired."""
        with timeout(seconds=OPERATION_TIMEOUT):
            return self.celery_app.tasks["execute_workload"].apply_async(
                args=(workload.model_dump_json(),),
                queue=queue,
                task_id=workload.ti.external_executor_id,
                expires=START_TIMEOUT_S,
            )

    def revoke(self, key: Any) -> None:
        """Ask the workers to skip a task that was sent and has not started. A worker that misses it finds it expired.

        A plain task is forgotten, as CeleryExecutor does. A placed one is followed, because its lease must be freed.
        """
        sent = self.workloads.get(key)
        if key not in self._placed:
            self.workloads.pop(key, None)
            self.running.discard(key)
        if sent is not None:
            with timeout(seconds=OPERATION_TIMEOUT):
                self.celery_app.control.revoke(sent.task_id)

    def update_task_state(self, key: Any, state: str, info: Any) -> None:
        """Note Celery's state. A placed task that expired in its queue has not failed."""
        if state == states.REVOKED and key in self._placed:
            self.workloads.pop(key, None)
            self.running.discard(key)
            self.undelivered.add(key)
        else:
            super().update_task_state(key, state, info)
        if key not in self.workloads:
            self._placed.discard(key)
