"""The lines in the logs of waiting tasks: why they wait, at which place, and when they are expected to start."""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.scheduling.advice.start_estimate import Decide, estimate_start
from hetero_airflow.units import format_duration

log = logging.getLogger(__name__)

_LOG_S = 0.2
"""The logs of waiting tasks are written for this long in one heartbeat. On a busy disk, one takes milliseconds."""

_LOG_LINES = 100
"""How many lines one heartbeat writes at most; 2,000 waiting tasks have theirs after 20 heartbeats."""

_MAX_REQUESTS = 100
"""With more requests, waiting and running, no start is estimated. With 58, an estimate took 12 to 103 ms, with 268 it
took 34 to 410 ms; policies that solve a linear program take longest. `airflow hetero explain` has it for any number."""

_ESTIMATES_S = 0.05
"""After this time, the other lines of a heartbeat have no expected start."""


class WaitLogs:
    """Writes them.

    :param add_context: adds to a snapshot what the policy knows beside it
    :param decide: of a policy that decides on nothing else: it would take the simulated futures for the present
    :param period_s: see `hetero_airflow.policies.policy.period_of`
    """

    def __init__(self, add_context: Callable[[Snapshot], Snapshot], decide: Decide, period_s: float | None) -> None:
        self._add_context = add_context
        self._decide = decide
        self._period_s = period_s

    def write(self, tasks: Iterable[PendingTask], snapshot: Snapshot, now: datetime) -> None:
        """Let the tasks' logs say why they wait. Thousands may be new at once: the next call goes on with the rest."""
        unlogged = ((task, task.unlogged_wait) for task in tasks if task.unlogged_wait is not None)
        due = [(task, wait) for task, wait in unlogged if task.may_log_wait(wait, now)]
        if not due:
            return
        names, lines, began = TaskNames.of(snapshot), 0, time.monotonic()
        is_small = len(snapshot.pending) + len(snapshot.leases) <= _MAX_REQUESTS
        known = self._add_context(snapshot) if is_small else None
        for task, wait in due:
            task.unlogged_wait = None
            has_time = time.monotonic() < began + _ESTIMATES_S
            expected = self._expected(task, known, now) if known is not None and has_time else ""
            lines += task.log_wait(wait, names, now, expected)
            if lines >= _LOG_LINES or time.monotonic() >= began + _LOG_S:
                break

    def _expected(self, task: PendingTask, snapshot: Snapshot, now: datetime) -> str:
        """When the task is expected to start; empty if that is not known."""
        try:
            start_s = estimate_start(snapshot, task.request_id, self._decide, now, self._period_s).start_s
        except Exception as error:  # noqa: BLE001  a policy from another package may raise anything
            log.debug("The start of request %s can't be estimated: %r", task.request_id, error)
            return ""
        if start_s is None or start_s.high <= 0:
            return ""
        low, middle, high = map(format_duration, start_s)
        return f". Expected start: in about {middle}" + (f" ({low} to {high})" if low != high else "")
