"""What is done about runs outside the table in `runs`: `CommandRunner` carries it out."""

from datetime import datetime
from typing import Any, NamedTuple

from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.model.lease import Lease
from hetero_airflow.store.store import LeaseMove


class Submit(NamedTuple):
    """Put the request into the store's queue, with the service that it has had."""


class Withdraw(NamedTuple):
    """Take the request out of the store's queue."""

    cause: str


class Start(NamedTuple):
    """Give the task its lease, and the engine the task. `HandedOver` follows, or `Failed`.

    Nothing follows if it can't start yet, or another scheduler starts it: it waits on.
    """

    lease: Lease
    is_found: bool
    """Only once a task can start, and unless another scheduler is faster."""


class Send(NamedTuple):
    """Give the engine the task without a lease, with a new token. `Sent` follows."""


class Forget(NamedTuple):
    """Let the engine count the task no longer: its process is lost."""


class Follow(NamedTuple):
    """Let a cluster report on a lease that another scheduler handed over."""


class Report(NamedTuple):
    """Tell Airflow's scheduler the state of the task."""

    state: Any
    info: Any = None
    is_noted: bool = False
    """The reason also comes into Airflow's audit log."""


class Log(NamedTuple):
    """Write a line into the task's log."""

    text: str
    level: str = "info"


class Note(NamedTuple):
    """Write a line into Airflow's audit log of the task."""

    text: str


class Warn(NamedTuple):
    """Write a line into the scheduler's log."""

    text: str


class Tell(NamedTuple):
    """Tell the task that its lease is taken back."""


class Reschedule(NamedTuple):
    """Change Airflow's row, so that Airflow stops the process and queues the task again with the same try."""


class Signal(NamedTuple):
    """Send a signal to the processes of the lease."""

    number: int
    row: TaskProcess


class Free(NamedTuple):
    """End the lease, once the failure that the run recorded is known."""

    move: LeaseMove


class Again(NamedTuple):
    """Let the task wait again in a new run, if it does not already. `Runs` does this itself."""

    lease: TaskLease | None
    """The lease under which it did not start; None if its worker has no part in that."""
    not_before: datetime | None = None
    """Its start failed, and is tried again then; None if it was no fault of what starts it."""


class EndLeftOver(NamedTuple):
    """Free the lease of an earlier run of the task, in a run of its own. `Runs` does this itself."""

    lease: Lease


Command = (
    Submit | Withdraw | Start | Send | Forget | Follow | Report | Log | Note | Warn | Tell | Reschedule | Signal
    | Free | Again | EndLeftOver
)  # fmt: skip
