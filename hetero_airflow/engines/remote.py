"""Engines whose tasks run on other hosts: what Airflow, the worker's agent and the engine know about a process."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.engine import AirflowEngine, EngineContext, LeasedProcess, Liveness
from hetero_airflow.model.grant import START_WINDOW
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker, WorkerState

HEARTBEAT_MAX_AGE = timedelta(seconds=12)
"""How long an agent's heartbeat counts as current: two heartbeats and some slack."""

HEARTBEAT_MARGIN = timedelta(seconds=3)
"""An agent's heartbeat shows that a process is gone only if it is this much later than Airflow's last one from it."""

_MAX_FINISHED = 10_000
"""Number of finished leases that are remembered."""


def worker_queue(worker_id: str) -> str:
    """The queue of one worker, for ``airflow celery worker --queues``. No other worker may listen to it.

    >>> worker_queue("gpu-7")
    'hetero.gpu-7'
    """
    return f"hetero.{worker_id}"


def remote_liveness(
    process: LeasedProcess, worker: Worker | None, heartbeat: WorkerHeartbeat | None, sent_at: datetime, now: datetime
) -> Liveness:
    """Whether a process of a lease runs on a worker with an agent.

    A lost worker gets no task until its agent reports that no process of a finished lease runs there. So a lease on a
    lost worker counts as gone, unless its message may still lie in the worker's queue. The last heartbeat counts until
    the next one, however old it is.

    :param heartbeat: the agent's last one; None if there is none
    :param sent_at: when the task was handed over
    """
    is_lost = worker is None or worker.state is WorkerState.LOST
    if heartbeat is not None and process.lease.id in heartbeat.leases:
        if now - heartbeat.at < HEARTBEAT_MAX_AGE:
            return Liveness.ALIVE
        return Liveness.GONE if is_lost else Liveness.UNKNOWN
    may_start = process.state == "queued" or process.seen_at is None  # Airflow knows no process of it
    if may_start and now - sent_at < START_WINDOW:
        return Liveness.UNKNOWN
    if is_lost or process.state == "queued":
        return Liveness.GONE
    since = sent_at + START_WINDOW if process.seen_at is None else process.seen_at
    is_gone = heartbeat is not None and heartbeat.at > since + HEARTBEAT_MARGIN
    return Liveness.GONE if is_gone else Liveness.UNKNOWN


class RemoteEngine(AirflowEngine):
    """An executor whose tasks run on workers with agents."""

    name: str
    """The engine's name, as agents report it."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self._leases: dict[Any, str] = {}
        """Key → lease id, of tasks that were handed over and have not ended."""
        self._sent_at: dict[str, datetime] = {}
        """Lease id → time of the hand-over."""
        self._finished: dict[str, None] = {}

    def start(self, context: EngineContext) -> None:
        """Start the executor."""
        self._context = context
        super().start(context)

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker's agent reports that this engine's tasks run there."""
        return worker.engine == self.name

    def open_slots(self) -> int:
        """The slots that Airflow's ``parallelism`` leaves; the executor starts no more."""
        return max(0, int(self.executor.slots_available))

    @property
    def occupied_slots(self) -> int:
        """Workloads that the executor counts as its own, without device tasks."""
        ours = sum(key in self.executor.running or key in self.executor.queued_tasks for key in self._leases)
        return int(self.executor.slots_occupied) - ours

    def liveness_of(self, processes: Sequence[LeasedProcess]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, from the agents' heartbeats and the executor's events."""
        now, workers, heartbeats = datetime.now(UTC), self._context.workers(), self._context.heartbeats()
        liveness = {}
        for process in processes:
            lease = process.lease
            if lease.id in self._finished:
                liveness[lease.id] = Liveness.GONE
                continue
            worker, heartbeat = workers.get(lease.worker_id), heartbeats.get(lease.worker_id)
            sent_at = self._sent_at.get(lease.id, lease.granted_at)
            liveness[lease.id] = remote_liveness(process, worker, heartbeat, sent_at, now)
        return liveness

    def signal(self, process: LeasedProcess, number: int) -> None:
        """Do nothing: the supervisor and the agent on the worker end processes that outlive their task or lease."""

    def take_events(self) -> dict[Any, tuple[Any, Any]]:
        """The executor's events since the last call."""
        events = dict(self.executor.get_event_buffer())
        for key, (state, _) in events.items():
            if state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
                self._note_ended(key)
        return events

    def _note_sent(self, key: Any, lease: Lease) -> None:
        self._note_ended(key)
        self._leases[key], self._sent_at[lease.id] = lease.id, datetime.now(UTC)

    def _note_ended(self, key: Any) -> None:
        """Note that a task ended. A process of it may still run on its worker."""
        self._sent_at.pop(self._leases.pop(key, ""), None)

    def _note_withdrawn(self, key: Any) -> None:
        """Note that a task was taken back before it was sent."""
        self._note_finished(key)
        self._note_ended(key)

    def _note_finished(self, key: Any) -> None:
        """Note that no process of a task is left: its supervisor ended normally, or the task was never sent."""
        if key in self._leases:
            self._finished[self._leases[key]] = None
            if len(self._finished) > _MAX_FINISHED:
                del self._finished[next(iter(self._finished))]

    def _reported(self) -> Iterator[Any]:
        """The keys of tasks whose processes are in the last heartbeat of an agent."""
        running = frozenset[str]().union(*(heartbeat.leases for heartbeat in self._context.heartbeats().values()))
        return (key for key, lease_id in self._leases.items() if lease_id in running)
