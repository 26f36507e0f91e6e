"""What is known of a task's process on another host: from Airflow, from the worker's agent, and from what was sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.engine import EngineContext, LeasedProcess, Liveness
from hetero_airflow.engines.wrapped_executor import WrappedExecutor
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker, WorkerState

HEARTBEAT_MAX_AGE = timedelta(seconds=12)
"""What an agent said is taken for true for so long: two of its heartbeats and a bit."""

HEARTBEAT_MARGIN = timedelta(seconds=3)
"""An agent has to look so much later than Airflow last heard of a task to say that its process is gone."""

START_TIMEOUT_S = 60.0
"""A task that has not begun so long after it was sent can't begin any more: its token is not good for longer."""

_START_WINDOW = timedelta(seconds=START_TIMEOUT_S + 15)
"""With what Airflow's API server allows for clocks that differ: 10 s, [api_auth] jwt_leeway."""

_MAX_FINISHED = 10_000
"""Leases of which it is remembered that they are over."""


class RemoteLeases:
    """The leases of what was handed over to workers that agents speak for."""

    def __init__(self) -> None:
        self._leases: dict[Any, str] = {}
        """Key → lease, of what was handed over and has not ended."""
        self._sent: dict[str, datetime] = {}
        """Lease → when it was handed over."""
        self._over: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the task was handed over and has not ended, as far as was reported."""
        return key in self._leases

    def __iter__(self) -> Iterator[Any]:
        """The keys of what was handed over and has not ended."""
        return iter(self._leases)

    def hand_over(self, key: Any, lease: Lease) -> None:
        """Take note of a task that is sent now."""
        self.end(key)
        self._leases[key], self._sent[lease.id] = lease.id, datetime.now(UTC)

    def end(self, key: Any) -> None:
        """Take note of a task that ended, whatever may be left of it on its worker."""
        self._sent.pop(self._leases.pop(key, ""), None)

    def withdraw(self, key: Any) -> None:
        """Take note of a task that was taken back before it left."""
        self.note_finished(key)
        self.end(key)

    def note_finished(self, key: Any) -> None:
        """Take note that no process of a task is left: its supervisor ended in order, or it was never sent."""
        if key in self._leases:
            self._over[self._leases[key]] = None
            if len(self._over) > _MAX_FINISHED:
                del self._over[next(iter(self._over))]

    def look(self, uses: Sequence[LeasedProcess], surroundings: EngineContext) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, as agents and the executor say."""
        now, workers, heartbeats = datetime.now(UTC), surroundings.workers(), surroundings.heartbeats()
        found = {}
        for use in uses:
            lease = use.lease
            worker, sight = workers.get(lease.worker_id), heartbeats.get(lease.worker_id)
            sent_at = self._sent.get(lease.id, lease.granted_at)
            found[lease.id] = (
                Liveness.GONE if lease.id in self._over else remote_liveness(use, worker, sight, sent_at, now)
            )
        return found


def remote_liveness(
    use: LeasedProcess, worker: Worker | None, sight: WorkerHeartbeat | None, sent_at: datetime, now: datetime
) -> Liveness:  # fmt: skip
    """Whether a process of a lease runs on a worker that its agent speaks for.

    A worker that is lost gets nothing new until its agent says that no process of a lease that is over lives there, so
    of a lease on it nothing has to be waited for; but a message may lie there, and be found when it comes back. What
    an agent saw counts for there until it says otherwise, however long it is silent.

    :param sight: what the agent said last; None for nothing yet
    :param sent_at: when the task was handed over
    """
    is_lost = worker is None or worker.state is WorkerState.LOST
    if sight is not None and use.lease.id in sight.leases:
        return Liveness.ALIVE if now - sight.at < HEARTBEAT_MAX_AGE else Liveness.GONE if is_lost else Liveness.UNKNOWN
    may_begin = use.state == "queued" or use.seen_at is None  # Airflow knows of no process of it
    if may_begin and now - sent_at < _START_WINDOW:
        return Liveness.UNKNOWN
    if is_lost or use.state == "queued":
        return Liveness.GONE
    since = sent_at + _START_WINDOW if use.seen_at is None else use.seen_at
    return Liveness.GONE if sight is not None and sight.at > since + HEARTBEAT_MARGIN else Liveness.UNKNOWN


class RemoteEngine(WrappedExecutor):
    """An executor whose tasks run on workers that agents speak for."""

    name: str
    """Of the engine, as agents say it."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self.leases = RemoteLeases()

    def start(self, surroundings: EngineContext) -> None:
        """Start the executor."""
        self._surroundings = surroundings
        super().start(surroundings)

    def reaches(self, worker: Worker) -> bool:
        """Whether the worker's agent says that this engine's tasks run there."""
        return worker.engine == self.name

    def open_slots(self) -> int:
        """As many as Airflow's ``parallelism`` leaves, which the executor keeps to."""
        return max(0, int(self.executor.slots_available))

    @property
    def occupied_slots(self) -> int:
        """Workloads that the executor counts as its own, without device tasks."""
        ours = sum(key in self.executor.running or key in self.executor.queued_tasks for key in self.leases)
        return int(self.executor.slots_occupied) - ours

    def look(self, uses: Sequence[LeasedProcess]) -> dict[str, Liveness]:
        """Lease id → whether a process of it runs, as agents and the executor say."""
        return self.leases.look(uses, self._surroundings)

    def signal(self, use: LeasedProcess, number: int) -> None:
        """Nothing: the supervisor and the agent on the worker end what outlives its task or its lease."""

    def ended(self) -> dict[Any, tuple[Any, Any]]:
        """The executor's events since the last call."""
        events = dict(self.executor.get_event_buffer())
        for key, (state, _) in events.items():
            if state in (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
                self.leases.end(key)
        return events
