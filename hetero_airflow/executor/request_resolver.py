"""The device requests of tasks that have just been queued. Templates are rendered beside the scheduler's loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.executor.templates.renderer import TemplateRenderer, pack_context
from hetero_airflow.model.request import DeviceRequest

_READ_S = 0.2
"""The contexts of templates are read for this long in one round; the other tasks wait for the next one."""

_WAIT_TEXT = "Waiting until the templates in its device request are rendered"


class RequestResolver:
    """Finds the requests of tasks, over as many rounds as it takes. Reads Airflow's database, and never waits."""

    def __init__(self, tasks: TaskInstances) -> None:
        self._tasks = tasks
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

    def close(self) -> None:
        """End the process that renders."""
        self._renderer.close()

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
