"""The ports of an engine: what the cycle asks of whoever drives it, and what drivers ask of an Airflow executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, cast

from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Reason
from hetero_airflow.model.worker import Worker

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteTask
    from sqlalchemy.orm import Session


class Liveness(StrEnum):
    """Whether the process that uses a lease is there."""

    ALIVE = "alive"
    """A process of the lease was seen just now."""
    GONE = "gone"
    """It is known that no process of the lease runs, or that its worker gets nothing new before none does."""
    UNKNOWN = "unknown"
    """The engine can't tell, or the worker does not answer."""


class Engine(Protocol):
    """Takes placements. What it reports of their end, the driver reads; the cycle does not."""

    def dispatch(self, lease: Lease) -> None:
        """Hand over the work of a lease that was just granted. Does not wait for it to start."""
        ...

    def is_ours(self, request_id: str) -> bool:
        """Whether this engine has the work of a request; another scheduler's requests are decided, but left to it."""
        ...

    def reaches(self, worker_id: str) -> bool:
        """Whether what is dispatched here can run on that worker."""
        ...

    def open_slots(self) -> int | None:
        """How many more placements could start at once; None for any number. More would hold their devices idle."""
        ...

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""
        ...


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What Airflow wants to know of an executor's class before it makes one."""

    is_local: bool = False
    """Tasks run on the scheduler's host; `airflow standalone` insists on it."""
    serve_logs: bool = False
    """The scheduler serves the logs of its host's tasks."""
    supports_callbacks: bool = False
    supports_connection_test: bool = False
    pre_assigns_external_executor_id: bool = False
    """Airflow gives each task instance an id for the executor when it queues it."""
    is_cluster: bool = False
    """It knows of its workers and of what it handed over by itself: a `ClusterEngine`."""
    start_s: float | None = None
    """A device task that has not begun so long after it was handed over can't begin any more; None for no limit."""


@dataclass(frozen=True, slots=True)
class LeasedProcess:
    """A lease, and what Airflow knows of the process that uses it."""

    lease: Lease
    state: str | None = None
    """Of the task instance; None once its try is history."""
    pid: int | None = None
    hostname: str = ""
    seen_at: datetime | None = None
    """When Airflow last heard of the process."""
    is_ours: bool = False
    """This scheduler's executor has it, or had it; else one that died may have handed it over."""


@dataclass(frozen=True, slots=True)
class TerminationCause:
    """An end of the work of a lease that only its cluster can tell, since whoever supervised it ended with it."""

    is_out_of_memory: bool = False
    """Its process ran, and was killed for want of host memory; else it was ended from outside: evicted, deleted."""
    host_memory_bytes: int | None = None
    """What it might use; None for no limit, and where memory was not the cause."""


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """What an engine that knows of workers without agents says of them."""

    seen: tuple[Worker, ...] = ()
    """With a new inventory, or new."""
    alive: tuple[str, ...] = ()
    """Ids of those that are as they were seen last."""
    lost: tuple[str, ...] = ()
    """Ids of those that don't answer, or are gone; the inventory of some is known, so that they are `seen` too."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine is given when it starts."""

    job_id: Any
    """Of the scheduler's job, as text."""
    callback_sink: Any
    name: Any
    """Airflow's name of the executor, or None."""
    heartbeats: Callable[[], Mapping[str, WorkerHeartbeat]]
    """Worker id → what its agent said last; a query."""
    workers: Callable[[], Mapping[str, Worker]]
    """Worker id → worker, as in the last snapshot."""

    def apply_to(self, executor: Any) -> None:
        """Tell one of Airflow's executors what Airflow tells those that it starts itself."""
        executor.job_id, executor.callback_sink, executor.name = self.job_id, self.callback_sink, self.name


class AirflowEngine(Protocol):
    """One of Airflow's executors behind one face. All that is known of its queues and keys stays behind it.

    Made as ``(parallelism, team_name)``, in every component that asks for executors: making one has no side effects.
    """

    traits: EngineTraits

    def start(self, surroundings: EngineContext) -> None:
        """Start the executor."""
        ...

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device, exactly as the executor alone would."""
        ...

    def hand_over(self, workload: ExecuteTask, lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a worker; it starts at the next `heartbeat`."""
        ...

    def hand_over_unplaced(self, workload: ExecuteTask) -> None:
        """Take a task that was held and needs no device any more; it runs where it would have without us."""
        ...

    def withdraw(self, key: Any) -> bool:
        """Take back a task that was handed over and has not left this process; whether it was still here."""
        ...

    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """What ended since the last call, as Airflow's event buffer has it."""
        ...

    def heartbeat(self) -> None:
        """Start what was taken."""
        ...

    def has_task(self, task_instance: Any) -> bool:
        """Whether the executor still has the task."""
        ...

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Take over another scheduler's tasks; those that can't be are returned."""
        ...

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        ...

    @property
    def occupied_slots(self) -> int:
        """Workloads that the executor counts as its own."""
        ...

    def reaches(self, worker: Worker) -> bool:
        """Whether what is handed over here can run on that worker."""
        ...

    def open_slots(self) -> int | None:
        """How many more tasks would start at once; None for any number."""
        ...

    def look(self, uses: Sequence[LeasedProcess]) -> Mapping[str, Liveness]:
        """Lease id → whether a process of it runs, for all of these at once."""
        ...

    def signal(self, use: LeasedProcess, number: int) -> None:
        """Send a signal to the processes of a lease, where that is in this engine's hand."""
        ...

    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Wait for the running tasks, then stop; what ended meanwhile."""
        ...

    def terminate(self) -> None:
        """Stop without waiting."""
        ...


class ClusterEngine(AirflowEngine, Protocol):
    """An engine whose workers have no agents: a cluster with a scheduler and a control plane of its own."""

    def poll(self) -> WorkerChanges:
        """What is new of its workers, such as nodes. Never blocks."""
        ...

    def follow(self, key: Any, lease: Lease) -> None:
        """From now on answer for the work of a lease that another scheduler, which died, had handed over."""
        ...

    def wait_reason(self, lease_id: str) -> Reason | None:
        """Why the work of a lease does not run yet though it was handed over; None once it does."""
        ...

    def task_log(self, task_instance: Any, try_number: int) -> tuple[list[str], list[str]]:
        """Messages, and what a task that runs has written so far; asked in the API server, without a `start`."""
        ...

    def loss(self, lease_id: str) -> TerminationCause | None:
        """What ended the work of a lease so that nobody else will say so; None for any other end, and before one."""
        ...

    def words(self, lease_id: str) -> str | None:
        """How the work of a lease stands, or stood last, in the cluster's own words; None for nothing known."""
        ...


def termination_cause_of(engine: AirflowEngine, lease: Lease) -> TerminationCause | None:
    """What an engine's cluster says of how the work of a lease was lost; None where it says nothing, or has none."""
    return cast(ClusterEngine, engine).loss(lease.id) if engine.traits.is_cluster else None
