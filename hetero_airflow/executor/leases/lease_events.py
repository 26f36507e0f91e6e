"""What the lease keeper finds out about leases; `LeaseEventHandler` acts on it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.run import RunEnd
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.runtime.task_lease import TaskLease


class LeaseFreed(NamedTuple):
    """The devices of a lease are free."""

    key: Any
    lease: Lease
    end: RunEnd | None
    """How the run ended; None if its process was lost."""
    failure: Future[Failure | None]
    """What its task recorded of its failure, or why that can't be read."""


class RunLost(NamedTuple):
    """The process of a running task is lost. The handler of this event calls `LeaseKeeper.end`."""

    key: Any
    lease: Lease
    cause: str


class StartFailed(NamedTuple):
    """The engine lost a task before it started."""

    task: PendingTask
    lease: TaskLease
    refusal: str = ""
    """The quota of its cluster that did not let it start; empty for any other cause."""


class EndUnreported(NamedTuple):
    """Airflow does not want a task any more, and its process is gone; the engine has not reported its end."""

    key: Any


LeaseEvent = LeaseFreed | RunLost | StartFailed | EndUnreported
