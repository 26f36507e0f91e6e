"""The engine for Celery workers: Airflow's CeleryExecutor, wrapped, with one queue for each worker.

All knowledge of CeleryExecutor's queues and keys sits here, since Airflow 3.4 changes them.
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
from hetero_airflow.engines.queues import worker_queue
from hetero_airflow.engines.remote import START_TIMEOUT_S, RemoteEngine
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

log = logging.getLogger(__name__)


class CeleryEngine(RemoteEngine):
    """Sends what it is given to the Celery worker that was decided."""

    name = "celery"
    traits = EngineTraits(supports_callbacks=True, pre_assigns_external_executor_id=True, start_s=START_TIMEOUT_S)

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        super().__init__(RoutingCeleryExecutor(parallelism, team_name))
        self._outage = ""

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a worker; it is sent at the next `heartbeat`."""
        if workload.key in self.leases:  # sent before, and void: Celery's answer to that is not this one's
            workload.ti.external_executor_id = str(uuid4())
        self.leases.hand_over(workload.key, lease)
        self.executor.places[workload.key] = worker_queue(worker.id)
        self.hand_over_unplaced(workload)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that was held; it is sent to the queue that it names at the next `heartbeat`."""
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task that was not yet sent; whether it was still there.

        Of one that was sent, the workers are told to pass it over; `collect` and `look` find out what came of it.
        """
        was_there = self.executor.queued_tasks.pop(key, None) is not None
        if was_there:
            self.executor.places.pop(key, None)
            self.leases.withdraw(key)
        else:
            self._tolerate_outage(lambda: self.executor.revoke(key))
        return was_there

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """What ended since the last call, as Celery's result backend says."""
        self._tolerate_outage(self.executor.sync)
        return self.ended()

    def heartbeat(self) -> None:
        """Send what was taken."""
        self._tolerate_outage(
            lambda: self.executor.trigger_tasks(self.executor.parallelism - len(self.executor.running))
        )

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave what runs to the next scheduler, as CeleryExecutor does; what had ended."""
        self._tolerate_outage(self.executor.end)
        return self.ended()

    def ended(self) -> dict[Any, tuple[Any, Any]]:
        """The executor's events since the last call. After an end in order, no process of the task is left."""
        for key in self.executor.void:
            self.leases.note_finished(key)
        self.executor.void.clear()
        for key, (state, _) in self.executor.event_buffer.items():
            if state == TaskInstanceState.SUCCESS:  # its supervisor has come to its end, whatever became of the task
                self.leases.note_finished(key)
        return super().ended()

    def _tolerate_outage(self, step: Callable[[], object]) -> None:
        """A broker or a result backend that does not answer costs one warning, not the scheduler's loop."""
        try:
            step()
        except (Exception, AirflowTaskTimeout) as error:  # noqa: BLE001  transports and backends raise their libraries'
            text = f"{type(error).__name__}: {error}"
            if text != self._outage:
                log.warning("Celery's broker or result backend does not answer: %s. What runs runs on.", text)
            self._outage = text
        else:
            self._outage = ""


class RoutingCeleryExecutor(CeleryExecutor):
    """CeleryExecutor that sends each placed task to its worker's own queue, to start within seconds or never."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.places: dict[Any, str] = {}
        """Key → Celery queue, of what was placed and not yet sent."""
        self.void: set[Any] = set()
        """Placed tasks that did not reach a worker's process and never will."""
        self._placed: set[Any] = set()

    def _send_workloads_to_celery(self, workload_tuples_to_send: Sequence[Any]) -> list[Any]:
        plain = [one for one in workload_tuples_to_send if one[0] not in self.places]
        placed = [one for one in workload_tuples_to_send if one[0] in self.places]
        sent = list(super()._send_workloads_to_celery(plain)) if plain else []
        error: BaseException | None = None
        for key, workload, _, _ in placed:
            queue = self.places.pop(key)
            if error is None:
                try:
                    sent.append((key, workload, self._send(workload, queue)))
                    self._placed.add(key)
                    continue
                except (Exception, AirflowTaskTimeout) as caught:  # noqa: BLE001  the transport's own
                    error = caught
            del self.queued_tasks[key]
            self.void.add(key)
        if error is not None:
            log.warning("Placed tasks were not sent and are held again: %s: %s", type(error).__name__, error)
        return sent

    def _send(self, workload: ExecuteTask, queue: str) -> Any:
        """Send a task, for a start within `START_S`; a worker that comes back later would find it void."""
        with timeout(seconds=OPERATION_TIMEOUT):
            return self.celery_app.tasks["execute_workload"].apply_async(
                args=(workload.model_dump_json(),),
                queue=queue,
                task_id=workload.ti.external_executor_id,
                expires=START_TIMEOUT_S,
            )

    def revoke(self, key: Any) -> None:
        """Tell the workers to pass over what was sent and has not begun; one that does not hear it finds it void later.

        A plain task is forgotten, as CeleryExecutor does; a placed one is followed, since its lease has to be freed.
        """
        sent = self.workloads.get(key)
        if key not in self._placed:
            self.workloads.pop(key, None)
            self.running.discard(key)
        if sent is not None:
            with timeout(seconds=OPERATION_TIMEOUT):
                self.celery_app.control.revoke(sent.task_id)

    def update_task_state(self, key: Any, state: str, info: Any) -> None:
        """Take note of Celery's state; a placed task that expired in its queue has not failed."""
        if state == states.REVOKED and key in self._placed:
            self.workloads.pop(key, None)
            self.running.discard(key)
            self.void.add(key)
        else:
            super().update_task_state(key, state, info)
        if key not in self.workloads:
            self._placed.discard(key)
