"""The engine for Celery workers: Airflow's CeleryExecutor, with one queue for each worker.

Only this module knows CeleryExecutor's queues and keys, because Airflow 3.4 changes them.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from uuid import uuid4

from airflow.executors.workloads import ExecuteTask
from airflow.providers.celery.executors.celery_executor import CeleryExecutor
from airflow.providers.celery.executors.celery_executor_utils import OPERATION_TIMEOUT, ExceptionWithTraceback
from airflow.providers.common.compat.sdk import AirflowTaskTimeout, timeout
from airflow.utils.state import TaskInstanceState
from celery import states
from celery.backends.base import BaseKeyValueStoreBackend
from celery.result import AsyncResult, denied_join_result
from kombu.exceptions import OperationalError

from hetero_airflow.engines.circuit_breaker import CircuitBreaker, ServiceCalls
from hetero_airflow.engines.engine import EngineTraits
from hetero_airflow.engines.remote import RemoteEngine, worker_queue
from hetero_airflow.model.grant import START_TIMEOUT_S
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

with suppress(ImportError):  # the signal of a time limit must not come in the middle of its first import
    import redis.client  # noqa: F401

log = logging.getLogger(__name__)

_SEND_LIMIT_S = 3.0
"""Most time that one message to the broker may take, whatever ``[celery] operation_timeout`` allows."""

_RESULTS_LIMIT_S = 3.0
"""Most time that reading the results may take, beside the scheduler's loop."""

_PATIENCE_S = 0.01
"""The loop waits so long for results, and once in an outage. They come in a few ms: an end is seen in the same
heartbeat."""

_CONNECT_LIMIT_S = 3
"""The same for a connection to a database. Its driver waits outside Python, where no signal reaches it."""

_ANSWERLESS = (AirflowTaskTimeout, OperationalError, OSError)
"""What a broker raises that can't be reached; any other error is about the message."""


class CeleryEngine(RemoteEngine):
    """Sends each device task to the Celery worker that the policy chose."""

    name = "celery"
    traits = EngineTraits(
        supports_callbacks=True, pre_assigns_external_executor_id=True, start_timeout_s=START_TIMEOUT_S
    )

    def __init__(self, parallelism: int, team_name: str | None = None) -> None:
        super().__init__(RoutingCeleryExecutor(parallelism, team_name))

    def open_slots(self) -> int:
        """The slots that Airflow's ``parallelism`` leaves; none while the broker does not answer."""
        return 0 if self.executor.broker.is_open else super().open_slots()

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a worker; it is sent at the next `heartbeat`."""
        self._note_sent(workload.key, lease)
        self.executor.queues[workload.key] = worker_queue(worker.id)
        self.hand_over_unplaced(workload)

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that waited; it is sent to the queue that it names at the next `heartbeat`."""
        workload.ti.external_executor_id = str(uuid4())  # Celery has a result for each id: that of an earlier message
        self.executor.queued_tasks[workload.key] = workload

    def withdraw(self, key: Any) -> bool:
        """Take back a task that was not sent yet. Returns whether it was still here.

        If it was sent, the workers are asked to skip it; `collect` and `liveness_of` show the result.
        """
        was_there = self.executor.queued_tasks.pop(key, None) is not None
        if was_there:
            self.executor.queues.pop(key, None)
            self._note_withdrawn(key)
        else:
            self.executor.revoke(key)
        return was_there

    def forget(self, key: Any) -> None:
        """Count a task no longer whose process is lost, and read its result no more."""
        self.executor.workloads.pop(key, None)
        super().forget(key)

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """The tasks that ended since the last call, from Celery's result backend."""
        for key in self._reported():
            self.executor.note_started(key)
        self.executor.sync()
        return self.take_events()

    def heartbeat(self) -> None:
        """Send the tasks that were handed over."""
        try:
            self.executor.trigger_tasks(self.executor.parallelism - len(self.executor.running))
        except Exception as error:  # noqa: BLE001  transports and backends raise their libraries'
            self.executor.broker.note_failure(error)

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Leave running tasks to the next scheduler, as CeleryExecutor does. Returns the tasks that had ended."""
        self.executor.patience_s = _RESULTS_LIMIT_S
        self.executor.end()
        return self.take_events()

    def take_events(self) -> dict[Any, tuple[Any, Any]]:
        """The executor's events since the last call. After a normal end no process of the task is left."""
        for key in self.executor.undelivered:
            self._note_finished(key)
        self.executor.undelivered.clear()
        for key, (state, _) in self.executor.event_buffer.items():
            if state == TaskInstanceState.SUCCESS:  # its supervisor has ended, whatever the task's own result is
                self._note_finished(key)
        return super().take_events()


class RoutingCeleryExecutor(CeleryExecutor):
    """CeleryExecutor that sends each placed task to its worker's queue, with a message that expires soon.

    It sends from this process alone, and asks the broker for nothing while it does not answer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.broker = CircuitBreaker("Celery's broker", "Tasks wait, and running ones go on.")
        self.results = ServiceCalls("Celery's result backend", "Running tasks go on.", _RESULTS_LIMIT_S, (Exception,))
        self.patience_s = _PATIENCE_S
        self.queues: dict[Any, str] = {}
        """Key → Celery queue, of placed tasks that were not sent yet."""
        self.undelivered: set[Any] = set()
        """Placed tasks that never reached a worker process, and never will."""
        self._placed: set[Any] = set()
        self._started: set[Any] = set()
        """Tasks of which a process was seen: placed ones, and those of another scheduler."""
        self._limit_connecting()

    def _limit_connecting(self) -> None:
        """Connect to a result backend in a database only to read results, and give up if it does not answer."""
        settings = self.celery_app.conf
        settings.database_create_tables_at_setup = False  # else a message would wait for it; reading creates them
        settings.result_backend_thread_safe = True  # all threads that read share its connections
        if str(settings.result_backend).startswith(("db+postgresql", "db+mysql")):
            options = settings.database_engine_options or {}
            arguments = {"connect_timeout": _CONNECT_LIMIT_S, **options.get("connect_args", {})}
            settings.database_engine_options = {**options, "connect_args": arguments}

    def _send_workloads_to_celery(self, workload_tuples_to_send: Sequence[Any]) -> list[Any]:
        """Send messages one after the other until the broker does not answer. Plain tasks then wait for the next try.

        The workers' pool of CeleryExecutor takes longer to start than most batches take here.
        """
        sent = []
        for key, workload, queue, _ in workload_tuples_to_send:
            is_placed = key in self.queues
            result = self._send(workload, self.queues.pop(key, queue), is_placed=is_placed)
            if isinstance(result, AsyncResult) or (result is not None and not is_placed):
                sent.append((key, workload, result))
                self._started.discard(key)  # that was an earlier message's
                self._placed.update([key] if is_placed else [])
            elif is_placed:
                del self.queued_tasks[key]
                self.undelivered.add(key)
        return sent

    def _send(self, workload: Any, queue: str, *, is_placed: bool) -> Any:
        """Send a message: its result, the error of the message, or None if the broker does not answer.

        A placed task must start within `START_TIMEOUT_S`. A worker that comes back later finds its message expired.
        """
        if self.broker.is_open:
            return None
        try:
            # the results are polled, so a backend of keys and values has nothing to subscribe to
            is_polled = isinstance(self.celery_app.backend, BaseKeyValueStoreBackend)
            with denied_join_result() if is_polled else nullcontext(), _limited():
                result = self.celery_app.tasks["execute_workload"].apply_async(
                    args=(workload.model_dump_json(),),
                    queue=queue,
                    task_id=getattr(getattr(workload, "ti", None), "external_executor_id", None),
                    expires=START_TIMEOUT_S if is_placed else None,
                )
        except _ANSWERLESS as error:
            self.broker.note_failure(error)
            return None
        except Exception as error:  # noqa: BLE001  the transport's own
            log.warning("%s can't be sent: %s: %s", workload.key, type(error).__name__, error)
            return ExceptionWithTraceback(error, "")
        self.broker.note_answer()
        return result

    def revoke(self, key: Any) -> None:
        """Ask the workers to skip a task that was sent and has not started. A worker that misses it finds it expired.

        A plain task is forgotten, as CeleryExecutor does. A placed one is followed, because its lease must be freed.
        """
        sent = self.workloads.get(key)
        if key not in self._placed:
            self.workloads.pop(key, None)
            self.running.discard(key)
        if sent is None or self.broker.is_open:
            return
        try:
            with _limited():
                self.celery_app.control.revoke(sent.task_id)
        except (Exception, AirflowTaskTimeout) as error:  # noqa: BLE001  the transport's own
            self.broker.note_failure(error)

    def update_all_workload_states(self) -> None:
        """Note the states of the sent tasks when the result backend has answered. A thread asks it."""
        read = partial(self.bulk_state_fetcher.get_many, list(self.workloads.values()))
        answer = self.results.ask("states", read, self.patience_s)
        if not answer.done() or answer.exception() is not None:
            return
        for key, sent in list(self.workloads.items()):
            state, info = answer.result().get(sent.task_id, (None, None))
            if state is not None:
                self.update_task_state(key, state, info)

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Follow the tasks of another scheduler. The next `sync` reads their states; this call reads none."""
        sent = [ti for ti in tis if ti.external_executor_id is not None]
        for ti in sent:
            self.workloads[ti.key] = AsyncResult(ti.external_executor_id, app=self.celery_app)
            self.running.add(ti.key)
        self._started.update(ti.key for ti in sent if ti.state == TaskInstanceState.RUNNING)
        return [ti for ti in tis if ti.external_executor_id is None]

    def note_started(self, key: Any) -> None:
        """Note that a process of a placed task was seen."""
        if key in self._placed:
            self._started.add(key)

    def update_task_state(self, key: Any, state: str, info: Any) -> None:
        """Note Celery's state. A placed task that expired in its queue has not failed.

        Redis delivers a message again if it is not acknowledged within the visibility timeout, which a long task is
        not. The message has expired by then, so the worker writes REVOKED over STARTED while the task runs on.
        """
        if state == states.STARTED:
            self.note_started(key)
        if state == states.REVOKED and key in self._started:
            return
        if state == states.REVOKED and key in self._placed:
            self.workloads.pop(key, None)
            self.running.discard(key)
            self.undelivered.add(key)
        else:
            super().update_task_state(key, state, info)
        if key not in self.workloads:
            self._placed.discard(key)
            self._started.discard(key)


def _limited() -> Any:
    """The time limit of one message."""
    return timeout(seconds=min(OPERATION_TIMEOUT, _SEND_LIMIT_S))
