"""The device requests of tasks that have just been queued. Templates are rendered beside the scheduler's loop."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from hetero_airflow.errors import RequestError
from hetero_airflow.executor import events
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.leases.recovery import PreviousRuns, TaskRecovery
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask
from hetero_airflow.executor.run import Run
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.executor.templates.renderer import TemplateRenderer, pack_context
from hetero_airflow.model.hold import with_holds
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.sql.store import SqlStore

_READ_S = 0.2
"""The contexts of templates are read for this long in one round; the other tasks wait for the next one."""

_WAIT_TEXT = "Waiting until the templates in its device request are rendered"


class RequestResolver:
    """Finds the requests of tasks, over as many rounds as it takes. Reads Airflow's database, and never waits.

    :param reaches: whether the engine can run anything on a worker
    """

    def __init__(
        self, store: SqlStore, tasks: TaskInstances, recovery: TaskRecovery, reaches: Callable[[str], bool]
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._recovery = recovery
        self._reaches = reaches
        self._renderer = TemplateRenderer()
        self._contexts: dict[tuple[str, str], str] = {}
        """(DAG, run) → its packed context, in this round."""
        self._defaults: dict[str, Mapping[str, Any]] = {}
        """DAG → the defaults of its params, in this round."""
        self._read_s = 0.0
        """How long this round has read contexts."""

    def begin_round(self) -> None:
        """Take what has been rendered since the last round."""
        self._contexts.clear()
        self._defaults.clear()
        self._read_s = 0.0
        self._renderer.poll()
        self._renderer.has_news = False

    def has_news(self) -> bool:
        """Whether something has been rendered since the last round began."""
        self._renderer.poll()
        return self._renderer.has_news

    def resolve(self, task: PendingTask, now: datetime) -> DeviceRequest | None:
        """The request of a task; None if its templates are not rendered yet, so ask again in the next round.

        :raises RequestError: the templates can't be rendered, or make no request
        """
        if isinstance(task.requested, DeviceRequest):
            return task.requested
        id_ = task.request_id
        if not self._renderer.knows(id_) and (context := self._context(task)) is not None:
            self._renderer.submit(id_, task.workload.ti.dag_id, task.requested, context)
        request = self._renderer.take(id_)
        if request is None and now - task.since >= SETTLING_TIME and task.logged_wait != _WAIT_TEXT:
            task.logged_wait = _WAIT_TEXT
            write_task_log(task.workload.log_path, f"{_WAIT_TEXT}.", now)
        return request

    def resolved(self, runs: Collection[Run], snapshot: Snapshot, now: datetime) -> list[tuple[Run, events.Event]]:
        """The requests of new tasks that are known now. A task that ran before gets what it needs after that."""
        found: list[tuple[Run, events.Event]] = []
        requests: dict[str, tuple[Run, DeviceRequest]] = {}
        for run in runs:
            task = run.waiting_task
            try:
                request = task.request or self.resolve(task, now)
            except RequestError as error:
                found.append((run, events.Failed(f"The device request can't be read: {error}")))
                continue
            if request is not None and task.request is not None:
                found.append((run, events.Resolved(request)))
            elif request is not None:
                requests[run.request_id] = run, request
        try_numbers = {id_: (run.key, run.waiting_task.workload.ti.try_number) for id_, (run, _) in requests.items()}
        previous_runs = self._recovery.previous_runs(try_numbers)
        service = self._store.service_records(requests)
        for id_, (run, request) in requests.items():
            task, previous = run.waiting_task, previous_runs.get(id_, PreviousRuns())
            if previous is None:  # not known yet
                task.requested = request
                continue
            is_new = not previous.failures and not task.not_started
            adjusted = request if is_new else self._adjusted(request, task, previous, snapshot, now)
            found.append((run, events.Resolved(adjusted, service.get(id_))))
        return found

    def reordered(self, runs: Collection[Run], now: datetime) -> Iterator[tuple[Run, events.Event]]:
        """The tasks that have waited so long that they try their next alternative first."""
        for run in runs:
            task = run.waiting_task
            if task.request is None or task.is_excluded:
                continue
            request, texts = self._recovery.rotated(task.original_request or task.request, task.waited_s(now))
            if request != task.request:
                yield run, events.Reordered(request, tuple(texts))

    def close(self) -> None:
        """End the process that renders."""
        self._renderer.close()

    def _adjusted(
        self, request: DeviceRequest, task: PendingTask, previous: PreviousRuns, snapshot: Snapshot, now: datetime
    ) -> DeviceRequest:
        """The request of a task that failed before, or did not start: with what it needs after that."""
        reachable = (worker for worker in snapshot.workers if self._reaches(worker.id))
        workers = [with_holds(worker, snapshot.holds_of(worker.id)) for worker in reachable]
        request, texts = self._recovery.adjust(request, previous, task.not_started, workers, now)
        for text in texts:
            write_task_log(task.workload.log_path, text, now, "warning")
        return request

    def _context(self, task: PendingTask) -> str | None:
        """What the task's templates may use; None if this round has no time left to read it."""
        run = task.workload.ti.dag_id, task.workload.ti.run_id
        if run not in self._contexts and self._read_s < _READ_S:
            begin = time.monotonic()
            try:
                self._contexts[run] = pack_context(self._tasks.template_context(*run, self._defaults))
            finally:
                self._read_s += time.monotonic() - begin
        return self._contexts.get(run)
