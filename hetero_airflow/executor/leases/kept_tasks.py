"""The tasks whose leases a scheduler keeps, from dispatch to release."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.utils.state import TaskInstanceState

from hetero_airflow.errors import shorten
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import RunEnd
from hetero_airflow.runtime.task_lease import TaskLease
from hetero_airflow.store.store import LeaseMove

log = logging.getLogger(__name__)

_RUN_ENDS: dict[str | None, RunEnd] = {
    TaskInstanceState.SUCCESS: RunEnd.FINISHED,
    TaskInstanceState.DEFERRED: RunEnd.PAUSED,
    TaskInstanceState.UP_FOR_RESCHEDULE: RunEnd.PAUSED,
}
"""State of a task instance whose process is gone → how the run ended; FAILED for all others. The engine can't tell:
LocalExecutor reports success for every process that ended in order, also if its task raised."""

ENDED = "the task ended"
"""The cause of the end of a lease whose engine reported the end of its task."""

_FAILED, _FAILED_STATES = "the task failed", frozenset({TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY})

EngineEvent = tuple[Any, Any]
"""The state of a task that an engine reports, and what it says beside."""


@dataclass(slots=True)
class RunningTask:
    """A task that was handed to the engine with its lease, or adopted from a scheduler that died."""

    key: Any
    lease: Lease
    start: tuple[PendingTask, TaskLease] | None = None
    """The task as it waited, and the lease that it carries; None if it was adopted while it ran."""
    over_since: datetime | None = None
    """Since when its process is known to be gone, or Airflow does not want it any more."""
    is_heartbeat_lost: bool = False
    """Airflow has had no heartbeat for too long: the worker may be frozen, and the process may still be there."""
    denied_end: EngineEvent | None = None
    """The end that the engine reported, while Airflow's row says that the run goes on."""


@dataclass(slots=True)
class EndingTask:
    """A task that is over for Airflow, whose lease waits for its processes to be gone."""

    key: Any
    lease: Lease
    to: LeaseState
    cause: str
    has_started: bool = True
    """Its process was there. If the task instance is QUEUED again, that says nothing about this lease."""
    stopped_at: datetime | None = None
    """When its remaining processes got SIGTERM."""
    is_end_known: bool = True
    """Airflow's row still shows how its run ended. If False, the task was queued again since."""

    @property
    def may_begin(self) -> bool:
        """Whether it was QUEUED when this was decided, so that its supervisor may have begun the run since."""
        return not (self.has_started and self.is_end_known)


def final_move(task: EndingTask, process: TaskProcess) -> LeaseMove:
    """The end of a lease whose processes are gone.

    :param process: Airflow's row of the task, which tells how the run ended
    """
    is_known = task.is_end_known and task.to is not LeaseState.EVICTED
    end = _RUN_ENDS.get(process.state, RunEnd.FAILED) if is_known else None
    has_failed = is_known and task.cause == ENDED and process.state in _FAILED_STATES
    return LeaseMove(task.lease.id, task.lease.token, task.to, _FAILED if has_failed else task.cause, end)


def warn_of_processes(tasks: Sequence[EndingTask]) -> None:
    """Log that processes of ended tasks still run: one line for all, since an outage of a cluster may have many."""
    if tasks:
        text = "The tasks of %d leases are over, but their processes still run. Devices stay leased until they end: %s"
        log.warning(text, len(tasks), shorten(", ".join(f"{task.lease.id} ({task.cause})" for task in tasks), 500))
