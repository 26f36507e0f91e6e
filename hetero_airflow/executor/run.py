"""A run, its phases, and how it ended. `runs` has the table of what can happen to it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from airflow.executors.workloads import ExecuteTask

from hetero_airflow.contract.notice import Notice
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.executor.events import EngineEnded
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import Transition


class Phase(StrEnum):
    """Where a run is in its life."""

    ARRIVED = "arrived"
    """Airflow's scheduler has queued it since the last heartbeat. Nothing was done with it yet."""
    RESOLVING = "resolving"
    """Its request is not known yet: its templates are rendered, and the failures of its last runs are read."""
    WAITING = "waiting"
    """Its request waits in the store's queue for devices."""
    CHECKING = "checking"
    """It asks whether its request could be placed now, and takes no device."""
    HELD = "held"
    """It needs no device, and waits until Airflow's API server answers."""
    SENT = "sent"
    """The engine has it. It has no lease."""
    GIVEN_UP = "given up"
    """Its supervisor is lost. It has no lease. The recovery rules decide whether it runs again with the same try."""
    HANDED_OVER = "handed over"
    """The engine has it, with its lease. Airflow does not know of a process yet."""
    RUNNING = "running"
    """Airflow knows of its process."""
    STOPPING = "stopping"
    """It has a notice to save and end, and its grace time."""
    LOST = "lost"
    """Its process is gone or given up, or lost its lease. The recovery rules decide whether it runs again with the same
    try."""
    ENDING = "ending"
    """It is over for Airflow. Its lease ends when its processes are gone."""
    OVER = "over"
    """Nothing of it is left here."""


QUEUED = frozenset({Phase.RESOLVING, Phase.WAITING})
"""It waits for devices."""

UNLEASED = frozenset({Phase.CHECKING, Phase.HELD, Phase.SENT, Phase.GIVEN_UP})
"""It has no lease and gets none."""

LEASED = frozenset({Phase.HANDED_OVER, Phase.RUNNING, Phase.STOPPING, Phase.LOST})
"""It goes on under a lease for which this scheduler is responsible."""


class End(NamedTuple):
    """How a run ended for Airflow, and what becomes of its lease."""

    cause: str
    to: LeaseState = LeaseState.RELEASED
    has_started: bool = True
    """Its process was there. If the task instance is QUEUED again, that says nothing about this lease."""
    is_known: bool = True
    """Airflow's row still shows how the run ended. If False, the task was queued again since."""

    @property
    def may_begin(self) -> bool:
        """Whether the task was QUEUED when this was decided, so that its supervisor may have begun the run since."""
        return not (self.has_started and self.is_known)


@dataclass(slots=True, eq=False)
class Run:
    """One start of a task."""

    key: Any
    """Airflow's key of the task try."""
    request_id: str
    """The id of the task instance: new for each try, the same for each run of it."""
    phase: Phase
    workload: ExecuteTask | None = None
    """None if it was taken over from a scheduler that died, while it ran."""
    task: PendingTask | None = None
    """What it asks for and how it waited; None if it asks for nothing, or was taken over while it ran."""
    lease: Lease | None = None
    carried: TaskLease | None = None
    """The lease as its task has it; None if another scheduler handed it over."""
    sent_at: datetime | None = None
    """When the engine got it without a lease."""
    notice: Notice | None = None
    """Why it has to stop, and until when it can save."""
    is_forced: bool = False
    """It did not stop in its grace time, and Airflow's row was changed."""
    over_since: datetime | None = None
    """Since when its process is known to be gone, or Airflow does not want it any more."""
    is_heartbeat_lost: bool = False
    """Airflow has had no heartbeat for too long: the worker may be frozen, and the process may still be there."""
    denied_end: EngineEnded | None = None
    """The end that the engine reported, while Airflow's row says that the run goes on."""
    end: End | None = None
    """How it ended; None before that."""
    stopped_at: datetime | None = None
    """When the processes that it left got SIGTERM."""
    noted: Transition | None = None
    """The last step that was noted."""

    @property
    def held_lease(self) -> Lease:
        """Its lease, in a phase in which it has one."""
        assert self.lease is not None, f"{self.key} is {self.phase} without a lease"
        return self.lease

    @property
    def waiting_task(self) -> PendingTask:
        """What it asks for, in a phase in which it waits."""
        assert self.task is not None, f"{self.key} is {self.phase} without a request"
        return self.task
