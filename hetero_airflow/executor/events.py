"""What is found out about runs, with all facts that count; see the table in `runs`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero_airflow.engines.engine import Liveness

if TYPE_CHECKING:  # `hetero explain` names these events without importing Airflow
    from hetero_airflow.contract.notice import Notice
    from hetero_airflow.contract.task_lease import TaskLease
    from hetero_airflow.engines.engine import TerminationCause
    from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
    from hetero_airflow.executor.pending_task import PendingTask
    from hetero_airflow.model.lease import Lease
    from hetero_airflow.model.request import DeviceRequest
    from hetero_airflow.model.run import ServiceRecord
    from hetero_airflow.model.snapshot import PendingRequest

NOT_WANTED = "Airflow does not want it any more"


class Read(NamedTuple):
    """The task has arrived, and what it asks for was read."""

    task: PendingTask | None
    """None if it asks for no device."""
    is_check: bool = False


class Adopted(NamedTuple):
    """Airflow gives this scheduler a task that runs, and whose scheduler it takes for dead."""

    lease: Lease
    is_live: bool
    """The store still has the lease. If not, a cycle took it back before Airflow missed the scheduler."""


class Failed(NamedTuple):
    """The task can never start: its request can't be read or served, or it has waited too long."""

    text: str


class Dropped(NamedTuple):
    """Airflow does not want the task any more: a user marked, cleared or deleted it, or its gang needs it no more."""

    text: str = ""
    """For its log; empty if the log says it already."""
    cause: str = NOT_WANTED


class Revoked(NamedTuple):
    """Airflow's scheduler takes a task back that it found stuck in the queue. The engine has no process of it."""


class Resolved(NamedTuple):
    """The request of the task is known. If the store has lost it, it is stored again."""

    request: DeviceRequest
    service: ServiceRecord | None = None
    """What it had when it ran before. With it, it keeps its place in the queue, whichever scheduler had it before."""


class RequestFound(NamedTuple):
    """The store has the request: a scheduler that died submitted it, or the answer to a commit was lost."""

    pending: PendingRequest


class Reordered(NamedTuple):
    """The task has waited so long that it tries its alternatives in another order."""

    request: DeviceRequest
    texts: tuple[str, ...]


class GangChanged(NamedTuple):
    """The gang of the task is placed anew, under another name or without this rank."""


class Granted(NamedTuple):
    """The task has got devices: the store has a lease for it, under which nothing was started.

    A lease names the scheduler that starts its task. If that one may be dead, `leases.lease_use` decides whether the
    lease is used, left alone, followed (`FoundRunning`) or ended (`FoundLeftOver`).
    """

    lease: Lease
    is_found: bool = False
    """Another scheduler placed its whole gang, or the answer to a commit was lost. If False, a cycle has just granted
    it, and no other scheduler may start its task."""


class FoundRunning(NamedTuple):
    """The task has begun under a lease of a scheduler that may be dead."""

    lease: Lease


class FoundLeftOver(NamedTuple):
    """An earlier run of the task has a lease, or a scheduler that died got one for it, and nothing can begin under
    it."""

    lease: Lease


class HandedOver(NamedTuple):
    """The engine has taken the task with its lease."""

    lease: Lease
    carried: TaskLease


class Answered(NamedTuple):
    """A placement check has its answer, or the API server answers and a held task is still wanted."""


class Sent(NamedTuple):
    """The engine has taken the task without a lease."""


class EngineEnded(NamedTuple):
    """The engine reports the state of a run. The report has the key of the task, and may be an earlier run's."""

    state: Any
    info: Any
    row: TaskProcess | None = None
    """Airflow's row; None if its database does not answer."""
    liveness: Liveness = Liveness.UNKNOWN
    cause: TerminationCause | None = None
    """What a cluster says about the end."""
    names_runs: bool = True
    """The report is that of the run that was handed over last, or of an earlier one if that is still to be reported."""
    has_cluster: bool = False
    is_remembered: bool = False
    """The end of an earlier run of the task was not reported yet."""
    is_queued_again: bool = False
    """The task waits here for its next run."""
    has_api_failed: bool = False
    """Airflow's API server has not answered since the run was handed over."""
    retry_after_s: float | None = None
    """When a start that failed is tried again; None: Airflow's retries decide."""

    @property
    def is_end(self) -> bool:
        """Whether the run is over for the engine."""
        return self.state in ("success", "failed")

    @property
    def has_failed(self) -> bool:
        """Whether the engine reports a failure."""
        return bool(self.state == "failed")


class Watched(NamedTuple):
    """Airflow, the engine and its cluster were asked about the process of a run."""

    row: TaskProcess
    liveness: Liveness
    is_worker_lost: bool = False
    """The worker has sent no heartbeat for too long (`lost_worker_watch`). `HeartbeatLost` is about that of a task."""
    cause: TerminationCause | None = None
    refusal: str = ""
    """The quota of the cluster that does not let it start."""
    retry_after_s: float = 0.0
    """The pause after a refusal."""
    status: str | None = None
    """The last state in the cluster's words."""


class ApiAway(NamedTuple):
    """Airflow's API server does not answer: that no heartbeat and no end arrive says nothing."""


class HeartbeatLost(NamedTuple):
    """Airflow has had no heartbeat of the task for too long: it is lost, whatever the engine still has of it.

    Airflow says so by `change_state`. In an outage of its API server it says nothing.
    """


class LeaseGone(NamedTuple):
    """The lease can't be renewed any more: it was ended elsewhere. That is final."""

    row: TaskProcess
    earlier: tuple[Lease, ...] | None
    """The task's leases before this one; None if it has a later one, whose run the process in Airflow's row is."""


class Preempted(NamedTuple):
    """The lease is taken back: the task has to save and end."""

    notice: Notice


class GraceOver(NamedTuple):
    """The grace time of a preempted task is over, and also the time of the coordinator to stop it."""


class SchedulerStopped(NamedTuple):
    """This scheduler stops, and the run on its host has had its time."""

    row: TaskProcess


class RecoveryDecided(NamedTuple):
    """The recovery rules have decided on a lost run."""

    is_sent_back: bool
    """It waits again with the same try, or another scheduler or a user has decided. If False, Airflow fails it."""


class Looked(NamedTuple):
    """The processes that a run left were looked for, after it was over for Airflow."""

    is_live: bool
    """The store still has its lease."""
    row: TaskProcess
    liveness: Liveness


class Freed(NamedTuple):
    """The devices of the lease are free."""


def first_sentence(documented: Any) -> str:
    """The first sentence of a docstring, without its full stop. The page and `explain` show it for an event."""
    return inspect.cleandoc(documented.__doc__ or "").replace("\n", " ").split(". ")[0].rstrip(".")


Event = (
    Read | Adopted | Failed | Dropped | Revoked | Resolved | RequestFound | Reordered | GangChanged | Granted
    | FoundRunning | FoundLeftOver | HandedOver | Answered | Sent | EngineEnded | Watched | ApiAway | HeartbeatLost
    | LeaseGone | Preempted | GraceOver | SchedulerStopped | RecoveryDecided | Looked | Freed
)  # fmt: skip
