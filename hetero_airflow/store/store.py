"""What a cycle asks of a store (`Store`), and the events that it records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from hetero_airflow.errors import StoreError
from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.devices.health import DeviceHealth
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.host_data import HostData
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan, Reason
from hetero_airflow.model.request import Priority
from hetero_airflow.model.run import RunEnd, Transition
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker

SCHEDULER_KEPT = timedelta(hours=1)
"""How long a scheduler that does not decide any more stays known while another one decides."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The request gets no devices from now on; or gets devices again."""

    request_id: str
    is_paused: bool = True

    def of(self, pending: PendingRequest) -> PendingRequest:
        """The request with this change."""
        return replace(pending, is_paused=self.is_paused)


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """The request has another priority class from now on."""

    request_id: str
    priority: Priority

    def of(self, pending: PendingRequest) -> PendingRequest:
        """The request with this change."""
        return replace(pending, request=pending.request.model_copy(update={"priority": self.priority}))


QueueChange = Pause | PriorityChange


@dataclass(frozen=True, slots=True)
class StartClaimed:
    """A scheduler claims the start of a lease's task, which waits with it. The next snapshot shows who has it.

    Ignored if another scheduler has it, or if the lease is not held with this token. So a task is started once under a
    lease: two messages with one lease could begin two runs, one after the other.
    """

    lease_id: str
    token: int
    starter: str


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker's new inventory. It also counts as a heartbeat.

    A device that is leased and missing from the new inventory stays known until its lease ends. It is not leasable
    until then and has a `problem`.

    A worker that is lost or not yet online does not come online while its agent reports leases that are over or
    unknown: their processes may still use its devices. If the agent reports leases that the worker holds, it has to
    report them twice, since a scheduler may be ending them at this moment because it considers the worker lost.
    """

    worker: Worker
    telemetry: tuple[Telemetry, ...] = ()
    leases: frozenset[str] | None = None
    """Ids of the leases with processes on the host; None if the inventory does not come from the worker's agent."""
    data: HostData | None = None
    """What the host's data cache holds; None: as before."""


@dataclass(frozen=True, slots=True)
class WorkerAlive:
    """A heartbeat of an online worker whose inventory has not changed.

    The store ignores it if the worker is unknown or lost: another worker may offer its devices by now, so it has to
    send its inventory again.
    """

    worker_id: str
    telemetry: tuple[Telemetry, ...] = ()
    leases: frozenset[str] | None = None
    """As in `WorkerSeen`."""
    data: HostData | None = None


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker missed its liveness timeout. Its leases stay; the last report of its agent no longer counts."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerForgotten:
    """A lost worker is deleted with its devices. If it comes back, it is a new worker.

    Ignored if the worker is unknown or online, was seen since `before`, or held a lease since then. Its key, its holds
    and the error records of its devices stay until `SqlStore.prune`: they apply again if it comes back.
    """

    worker_id: str
    before: datetime


@dataclass(frozen=True, slots=True)
class ServerAlive:
    """A heartbeat of a process of the API server, which receives the agents' heartbeats."""

    is_new: bool = False
    """The process has just started."""


@dataclass(frozen=True, slots=True)
class SchedulerDecided:
    """A scheduler has completed a cycle, also one in which nothing had changed.

    Schedulers that did not decide for `SCHEDULER_KEPT` before this one are forgotten, so the newest always stays.
    """

    scheduler: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A request that waits from now on. Nothing changes if a request with this id waits or holds a lease already."""

    pending: PendingRequest

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.pending.id


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """A request that no longer waits, and the cause. The store ignores unknown ids."""

    request_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The task of a lease has just published a checkpoint. Ignored if the lease is not held with this token."""

    lease_id: str
    token: int


@dataclass(frozen=True, slots=True)
class StartDelayed:
    """Why a placed request does not run yet; None once it runs. The reason is written into its newest decision.

    Ignored if the request is not placed.
    """

    request_id: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class TransitionsNoted:
    """How the runs of a request went on. The newest `MAX_TRANSITIONS` are kept. The store ignores unknown ids."""

    request_id: str
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class HoldPlaced:
    """A device or a whole worker gets no new task from now on. Replaces a hold of the same kind on it.

    Holds outlive inventories and restarts. A hold on an unknown worker applies once the worker is seen.
    """

    hold: Hold


@dataclass(frozen=True, slots=True)
class HoldLifted:
    """A hold is removed. Ignored if there is no hold of this kind."""

    worker_id: str
    device_id: str
    """Empty for the hold on the whole worker; the holds on its devices stay."""
    kind: HoldKind


@dataclass(frozen=True, slots=True)
class HealthNoted:
    """The new record of a device's errors; `NO_ERRORS` deletes the record."""

    worker_id: str
    device_id: str
    health: DeviceHealth


StoreEvent = (
    WorkerSeen
    | WorkerAlive
    | WorkerLost
    | WorkerForgotten
    | ServerAlive
    | SchedulerDecided
    | RequestSubmitted
    | RequestWithdrawn
    | CheckpointSaved
    | StartClaimed
    | StartDelayed
    | TransitionsNoted
    | HoldPlaced
    | HoldLifted
    | HealthNoted
    | HealthChanged
)


@dataclass(frozen=True, slots=True)
class LeaseMove:
    """A lease's change to another state. An empty cause stands for the text in the transition table."""

    lease_id: str
    token: int
    to: LeaseState
    cause: str = ""
    end: RunEnd | None = None
    """For a terminal state: how the task ended; None if it never ran or this is unknown. An evicted lease without
    it counts as lost."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The leases that a plan got, and the ids of requests whose devices were taken since the plan's snapshot."""

    leases: tuple[Lease, ...] = ()
    raced: tuple[str, ...] = ()


class Store(Protocol):
    """Holds workers, requests and leases. Every method is one transaction and may block on the database.

    :raises StoreUnavailable: (every method) the database is down, locked, or not migrated
    """

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Record the events in order."""

    def snapshot(self) -> Snapshot:
        """The current state; cheap if nothing has changed since the last call."""

    def commit(
        self, plan: Plan, now: datetime, expires_at: datetime, events: Sequence[StoreEvent] = ()
    ) -> CommitResult:
        """Grant the placements of a plan and store every decision with its explanation, in one transaction.

        The events are recorded first, so the plan may place requests that they submit.

        Each placement is granted whole or refused whole. It is refused if a device is gone, not leasable or leased
        by now, if cores or memory are taken, or if the request no longer waits. A refusal stops no other placement.
        """

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases; a terminal state frees the devices and ends the request, in one transaction.

        The result of each move, in order: the changed lease, or why it did not change (LeaseNotFound, LeaseLost for
        another token, InvalidTransition). A failed move stops no other.
        """


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """All that the store knows about one request, for `explain`."""

    pending: PendingRequest
    state: str
    """waiting, placed, or ended"""
    ended_at: datetime | None
    cause: str
    """Why it ended; empty before that."""
    leases: tuple[Lease, ...]
    decisions: tuple[dict[str, Any], ...]
    """Newest first. Each has ``decided_at`` (ISO 8601), ``outcome`` (place, wait, refuse), ``position``, ``reason``,
    ``nearest`` and ``account`` as JSON values, None where the outcome has none. The reason of a placement says why
    the task does not run yet."""
    transitions: tuple[Transition, ...] = ()
    """The newest transitions of its runs, oldest first."""

    @property
    def is_refused(self) -> bool:
        """Whether it ended since no known worker could ever run it."""
        return self.state == "ended" and bool(self.decisions) and self.decisions[0]["outcome"] == "refuse"


MAX_RUNS = 10_000
"""Runs that a history returns at once. Reading them from SQLite takes 1 s."""
