"""What the cycle asks of the executor, and `AirflowEngine`: what the executor asks of one of Airflow's executors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from hetero_airflow.contract.notice import Notice
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Preempt, Reason
from hetero_airflow.model.worker import Worker

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteTask
    from sqlalchemy.orm import Session

    from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
    from hetero_airflow.engines.local import LocalEngine, ReportPipe


class Liveness(StrEnum):
    """Whether the process that uses a lease runs."""

    ALIVE = "alive"
    """A process of the lease was seen just now."""
    GONE = "gone"
    """No process of the lease runs. On a lost worker one may still run; that worker gets no task until it has ended."""
    UNKNOWN = "unknown"
    """The engine can't tell, or the worker does not answer."""


class Engine(Protocol):
    """What the cycle asks: takes placements. The executor reads how they end; the cycle does not."""

    def dispatch(self, lease: Lease) -> None:
        """Hand over the work of a new lease. Does not wait for it to start."""

    def is_ours(self, request_id: str) -> bool:
        """Whether this engine has the work of a request. Requests of other schedulers are decided, not dispatched."""

    def reaches(self, worker_id: str) -> bool:
        """Whether work that is dispatched here can run on that worker."""

    def open_slots(self) -> int | None:
        """How many more placements can start at once; None for any number. Any beyond it would hold idle devices."""

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""


class Preemptor(Protocol):
    """Carries out preemptions. An engine that can't preempt has none."""

    def preempt(self, lease: Lease, order: Preempt) -> None:
        """Tell the holder of a lease to save and end. Called once for a lease; does not wait.

        When the task has ended, the executor releases the lease and submits the request again, with its attained
        service.
        """


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What Airflow reads from an executor's class before it makes an instance."""

    is_local: bool = False
    """Tasks run on the scheduler's host; `airflow standalone` requires it."""
    serve_logs: bool = False
    """The scheduler serves the logs of its host's tasks."""
    supports_callbacks: bool = False
    supports_connection_test: bool = False
    pre_assigns_external_executor_id: bool = False
    """Airflow gives each task instance an id for the executor when it queues it."""
    names_runs: bool = True
    """An end that it reports is that of the run which was handed over last. If False, it may be an earlier run's."""
    start_timeout_s: float | None = None
    """A device task must start this long after it was handed over, or it never starts; None for no limit."""


@dataclass(frozen=True, slots=True)
class LeasedProcess:
    """A lease, and what Airflow knows about the process that uses it."""

    lease: Lease
    state: str | None = None
    """State of the task instance; None if its try is over."""
    pid: int | None = None
    hostname: str = ""
    seen_at: datetime | None = None
    """Time of the last heartbeat that Airflow got from the process."""
    is_ours: bool = False
    """This scheduler's executor started it. If False, a dead scheduler may have handed it over."""


@dataclass(frozen=True, slots=True)
class TerminationCause:
    """Why the work of a lease ended, if only its cluster can tell: the supervisor ended together with the task."""

    is_out_of_memory: bool = False
    """Its process was killed because host memory ran out. If False, its worker broke, or it was evicted or deleted."""
    host_memory_bytes: int | None = None
    """Its memory limit; None for no limit, and if memory was not the cause."""
    worker_problem: str | None = None
    """Why its worker could not start it, in the cluster's words; None if that was not the cause."""


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """What a cluster reports about the work of a lease."""

    message: str | None = None
    """The current or last state, in the cluster's own words; None if the cluster knows nothing."""
    wait_reason: Reason | None = None
    """Why the work does not run yet; None once it runs."""
    termination_cause: TerminationCause | None = None
    """The cause of the end, if no other process reports it; None for any other end, and before the end."""
    refusal: str = ""
    """The quota that does not let it start on any worker now; empty if none is known."""


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """Changes to the workers of a cluster, which have no agents."""

    seen: tuple[Worker, ...] = ()
    """Workers that are new or have a new inventory."""
    alive: tuple[str, ...] = ()
    """Ids of workers that have not changed."""
    lost: tuple[str, ...] = ()
    """Ids of workers that do not answer or are gone. If the inventory is known, they are in `seen` too."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine gets when it starts."""

    job_id: Any
    """Id of the scheduler's job, as text."""
    callback_sink: Any
    name: Any
    """Airflow's name of the executor, or None."""
    heartbeats: Callable[[], Mapping[str, WorkerHeartbeat]]
    """Worker id → last heartbeat of its agent. Each call is a query."""
    workers: Callable[[], Mapping[str, Worker]]
    """Worker id → worker, as in the last snapshot."""
    signer: GrantSigner
    """By which an engine knows what it, or another scheduler of this Airflow, has made."""

    def apply_to(self, executor: Any) -> None:
        """Set what Airflow sets on the executors that it starts itself."""
        executor.job_id, executor.callback_sink, executor.name = self.job_id, self.callback_sink, self.name


class AirflowEngine(ABC):
    """One of Airflow's executors, inside the scheduler's loop. No other code knows its queues and keys.

    Made as ``(parallelism, team_name)``, in every component that asks for executors, so making one has no side effects.
    Engines add where device tasks run and what is known about their processes.
    """

    traits: EngineTraits
    cluster: "KubernetesEngine | None" = None
    """This engine, if clusters run its tasks; None if agents report the workers, or the tasks run on this host."""
    host: "LocalEngine | None" = None
    """This engine, if its tasks run on the scheduler's host and end with the scheduler."""
    prompt_ends: "ReportPipe | None" = None
    """How the engine tells at once that a task has ended; None if it must be asked."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    # -- its life ------------------------------------------------------------------------------------------------------

    def start(self, context: EngineContext) -> None:
        """Start the executor."""
        context.apply_to(self.executor)
        self.executor.start()

    @abstractmethod
    def heartbeat(self) -> None:
        """Start the tasks that were handed over."""

    @abstractmethod
    def collect(self) -> dict[Any, tuple[Any, Any]]:
        """The tasks that ended since the last call, in the form of Airflow's event buffer."""

    @abstractmethod
    def end(self) -> dict[Any, tuple[Any, Any]]:
        """Stop. Returns the tasks that had ended. The next scheduler follows those that run on."""

    def terminate(self) -> None:
        """Stop without waiting."""
        self.executor.terminate()

    # -- workloads that ask for no device, treated as if the executor ran alone ----------------------------------------

    def accept(self, workload: Any, session: "Session") -> None:
        """Take a workload that asks for no device."""
        self.executor.queue_workload(workload, session)

    def has_task(self, task_instance: Any) -> bool:
        """Whether the executor still has the task. Then Airflow takes an end of it for that of an earlier run."""
        return bool(self.executor.has_task(task_instance))

    def is_busy_with(self, task_instance: Any) -> bool:
        """Whether this run of a task waits in the executor or has a process of it. It must not start again then."""
        return self.has_task(task_instance)

    def forget(self, key: Any) -> None:
        """Count a task no longer whose process is lost. Nothing of it is reported from now on."""
        self.executor.running.discard(key)

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Follow the tasks of another scheduler. Returns those that the executor can't follow."""
        return self.executor.try_adopt_task_instances(task_instances)  # type: ignore[no-any-return]

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self.executor.fail_connection_test(key)

    @property
    @abstractmethod
    def occupied_slots(self) -> int:
        """How many workloads the executor counts as its own, without device tasks that the engine follows itself."""

    # -- device tasks that the cycle has placed ------------------------------------------------------------------------

    @abstractmethod
    def hand_over(self, workload: "ExecuteTask", lease: Lease, worker: Worker) -> None:
        """Take a device task that was placed on a worker; it starts at the next `heartbeat`."""

    @abstractmethod
    def hand_over_unplaced(self, workload: "ExecuteTask") -> None:
        """Take a task that waited and needs no device now; it runs where it would run without this plugin."""

    @abstractmethod
    def withdraw(self, key: Any) -> bool:
        """Take back a task that has not left this process. Returns whether it was still here."""

    @abstractmethod
    def reaches(self, worker: Worker) -> bool:
        """Whether a task that is handed over here can run on that worker."""

    @abstractmethod
    def open_slots(self) -> int | None:
        """How many more tasks would start at once; None for any number."""

    # -- the processes that use leases ---------------------------------------------------------------------------------

    @abstractmethod
    def liveness_of(self, processes: Sequence[LeasedProcess]) -> Mapping[str, Liveness]:
        """Lease id → whether a process of it runs. One call looks at all of them."""

    def tell(self, lease_id: str, notice: Notice) -> None:  # noqa: B027  only an engine on the task's host can
        """Ask the task of a lease to save and end at once, if this engine can. Its supervisor asks it a bit later."""

    @abstractmethod
    def signal(self, process: LeasedProcess, number: int) -> None:
        """Send a signal to the processes of a lease, if this engine can."""
