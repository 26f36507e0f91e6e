"""The ports of the store: the truth about workers, requests and leases, and the history of decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from hetero_airflow.errors import StoreError
from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.device_health import DeviceHealth
from hetero_airflow.model.heartbeat import ServerHeartbeat, WorkerHeartbeat
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan, Reason
from hetero_airflow.model.run import Run, RunEnd
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker's inventory, as just discovered; also its heartbeat.

    A device that is leased and missing from the new inventory stays known, not leasable and with
    a `problem`, until its lease has ended.

    A worker that is not online yet, or lost, stays so while its agent tells of leases that are over or unknown: their
    processes may still use its devices. Of leases that it holds it has to tell twice, since a scheduler that took the
    worker for lost may be taking them back just now.
    """

    worker: Worker
    telemetry: tuple[Telemetry, ...] = ()
    leases: frozenset[str] | None = None
    """Ids of the leases whose processes are on the host; None from whoever does not speak for a worker as its agent."""


@dataclass(frozen=True, slots=True)
class WorkerAlive:
    """A heartbeat of a worker that is online and as it was seen last.

    Passed over if it is unknown, or lost: another worker may offer its devices by now, so it has to be seen anew.
    """

    worker_id: str
    telemetry: tuple[Telemetry, ...] = ()
    leases: frozenset[str] | None = None
    """As in `WorkerSeen`."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker that has not been seen in time. Its leases stay; what its agent said last counts no more."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class ServerAlive:
    """A process of the API server, through which agents are heard, is there."""

    is_new: bool = False
    """It has just started."""


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A request that waits from now on; the same id again, while it waits or holds a lease, changes nothing."""

    pending: PendingRequest

    @property
    def request_id(self) -> str:
        """Its id."""
        return self.pending.id


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """A request that does not wait any longer, with what became of it; unknown ids are passed over."""

    request_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A lease whose task has published a checkpoint just now; passed over if it is not held with that token."""

    lease_id: str
    token: int


@dataclass(frozen=True, slots=True)
class StartDelayed:
    """Why a request that was placed does not run yet, in the newest decision on it; None once it does.

    Passed over where it is not placed.
    """

    request_id: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class HoldPlaced:
    """A device, or a whole worker, that gets no new task from now on; replaces a bar of the same kind on it.

    Bars outlive inventories and restarts; one on a worker that is not known yet holds once it is seen.
    """

    bar: Hold


@dataclass(frozen=True, slots=True)
class HoldLifted:
    """A bar that is taken off; passed over where there is none of that kind."""

    worker_id: str
    device_id: str
    """As in the bar: empty for the whole worker, whose devices' own bars stay."""
    kind: HoldKind


@dataclass(frozen=True, slots=True)
class HealthNoted:
    """What is remembered of a device's errors from now on; `WELL` forgets all."""

    worker_id: str
    device_id: str
    health: DeviceHealth


StoreEvent = (
    WorkerSeen
    | WorkerAlive
    | WorkerLost
    | ServerAlive
    | RequestSubmitted
    | RequestWithdrawn
    | CheckpointSaved
    | StartDelayed
    | HoldPlaced
    | HoldLifted
    | HealthNoted
    | HealthChanged
)


@dataclass(frozen=True, slots=True)
class LeaseMove:
    """A lease's change to another state; without a cause, the transition table's words stand for it."""

    lease_id: str
    token: int
    to: LeaseState
    cause: str = ""
    end: RunEnd | None = None
    """Of a move to a terminal state: how the task stood. None: it never ran, or nobody knows; a lease that is evicted
    is lost all the same."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a plan: leases granted, and ids of requests whose devices someone else took meanwhile."""

    leases: tuple[Lease, ...] = ()
    refused: tuple[str, ...] = ()


class Store(Protocol):
    """Holds the state of the world. Every method is one transaction and may block on the database.

    :raises StoreUnavailable: (every method) the database is down, locked, or not migrated
    """

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Take note of what happened, in order."""
        ...

    def snapshot(self) -> Snapshot:
        """The present state; cheap when nothing has changed since the last call."""
        ...

    def commit(self, plan: Plan, now: datetime, expires_at: datetime, news: Sequence[StoreEvent] = ()) -> CommitResult:
        """Grant the placements of a plan and keep every decision's account, in one transaction.

        The news come before it, as `record` would take note of them: the plan may place what they submit.
        Each placement is granted whole or refused whole: refused when a device is gone, not
        leasable or leased meanwhile, when the cores or memory are taken, or when the request no
        longer waits. A refusal stops no other placement of the plan.
        """
        ...

    def renew(self, holds: Sequence[tuple[str, int]], expires_at: datetime) -> frozenset[str]:
        """Extend the leases given as (lease id, token); the ids that are not held with that token any more.

        A granted or expired lease that is renewed becomes active; a preempted one stays so.
        """
        ...

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases; a terminal state frees the devices and ends the request, in one transaction.

        The outcome of each move, in order: the lease as it is now, or why it stayed as it was (LeaseNotFound,
        LeaseLost for another token, InvalidTransition). A move that fails stops no other.
        """
        ...


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """All that the store knows of one request: for explain."""

    pending: PendingRequest
    state: str
    """waiting, placed, or ended"""
    ended_at: datetime | None
    cause: str
    """Why it ended, where it did."""
    leases: tuple[Lease, ...]
    decisions: tuple[dict[str, Any], ...]
    """Newest first, each with ``decided_at`` (ISO 8601), ``outcome`` (place, wait, refuse), ``position``, ``reason``,
    ``nearest`` and ``account`` as JSON values, None where the outcome has none. The reason of one that was placed is
    why it does not run yet."""


MAX_RUNS = 10_000
"""Runs that a history gives at once, and that a store in memory remembers. From SQLite they take 1 s."""


class History(Protocol):
    """Reads what happened, and forgets what is old."""

    def request_history(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> RequestHistory | None:
        """The newest request of a task instance, or None if it never asked."""
        ...

    def telemetry(self) -> dict[tuple[str, str], Telemetry]:
        """(worker id, device id) → last reading."""
        ...

    def health(self) -> dict[tuple[str, str], DeviceHealth]:
        """(worker id, device id) → what is remembered of its errors; without those that are `WELL`."""
        ...

    def runs(self, since: int = 0) -> tuple[Run, ...]:
        """The leases that ended after that sequence and of which it is known how, in the order of their ends.

        Only the newest `MAX_RUNS`, and without those whose device is not known any more. Costs what is
        newer than `since`; the sequence of the last one is the next call's `since`.
        """
        ...

    def prune(self, before: datetime) -> int:
        """Delete ended requests, their leases and decisions from before that time; how many requests went.

        Of a waiting request, all decisions but the newest go too.
        """
        ...


class Presence(Protocol):
    """Who is there: the last word of workers, of their agents, and of the API server that hears these."""

    def last_seen(self) -> dict[str, datetime]:
        """Worker id → when it was last seen."""
        ...

    def heartbeats(self) -> Mapping[str, WorkerHeartbeat]:
        """Worker id → what its agent said last; without workers for which none speaks, or that are lost since."""
        ...

    def server_heartbeat(self) -> ServerHeartbeat | None:
        """When the API server was there; None if it never was."""
        ...
