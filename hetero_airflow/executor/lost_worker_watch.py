"""Finds the workers without a heartbeat, as soon as the liveness timeout has passed, and later forgets them.

Other schedulers report their own hosts. After an outage of the database none of them could, so such a host is lost only
if this scheduler has seen the same old heartbeat for a third of the timeout, in which a living one writes a new one.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.scheduling.reaper import forgettable_workers, lost_workers
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerForgotten, WorkerLost

_MIN_PERIOD = timedelta(seconds=1)
"""The time between two looks."""

_MIN_LOST = timedelta(minutes=10)
"""A worker has this long to come back after this scheduler first saw that it was lost, as after an outage."""


class WorkerRetention:
    """Keeps lost workers for a time. The clock of the database's rows and of the caller may differ by seconds.

    :param forget_after_s: a lost worker that was not seen for this long may be forgotten
    :param history_s: the last worker of a type, or one with a hold, is kept for this long
    """

    def __init__(self, store: SqlStore, forget_after_s: float, history_s: float) -> None:
        self._store = store
        self._forget_after = timedelta(seconds=forget_after_s)
        self._history = timedelta(seconds=max(history_s, forget_after_s))
        self._lost_since: dict[str, datetime] = {}
        """Worker id → when this scheduler first saw that it was lost."""

    def find_forgettable(self, now: datetime) -> tuple[WorkerForgotten, ...]:
        """An event for each worker to forget; the caller records them. Reads the heartbeats only if it may find any."""
        snapshot = self._store.snapshot()
        lost = (worker.id for worker in snapshot.workers if worker.state is WorkerState.LOST)
        self._lost_since = {worker_id: self._lost_since.get(worker_id, now) for worker_id in lost}
        latest = now - min(_MIN_LOST, self._forget_after)
        due = {worker_id for worker_id, since in self._lost_since.items() if since <= latest}
        if not due:
            return ()
        before, long_before = now - self._forget_after, now - self._history
        forgotten = forgettable_workers(snapshot, self._store.last_seen(), before, long_before)
        return tuple(WorkerForgotten(worker_id, before) for worker_id in forgotten if worker_id in due)


class LostWorkerWatch:
    """Looks three times within the timeout, and once more when the worker with the oldest heartbeat reaches it.

    :param local_worker_id: the worker that this scheduler reports itself, or None
    """

    def __init__(self, store: SqlStore, timeout_s: float, local_worker_id: str | None) -> None:
        self._store, self._timeout_s, self._local_worker_id = store, timeout_s, local_worker_id
        self._period = max(timedelta(seconds=timeout_s / 3), _MIN_PERIOD)
        self._next_at: datetime | None = None
        self._looked_at: datetime | None = None
        self._first_seen: dict[str, tuple[datetime, datetime]] = {}
        """Host of another scheduler → its newest heartbeat, and the look that saw this one first."""

    def find_lost(self, now: datetime) -> tuple[WorkerLost, ...]:
        """The workers that are lost now; empty if it is too early to look."""
        next_at = self._next_at
        if next_at is not None and next_at - self._period <= now < next_at:  # False if a clock was set back
            return ()
        workers = [worker for worker in self._store.snapshot().workers if worker.state is WorkerState.ONLINE]
        seen_at, heartbeats = self._store.last_seen(), self._store.heartbeats()
        lost = lost_workers(workers, seen_at, heartbeats, self._store.server_heartbeat(), now, self._timeout_s)
        remote_ids = [worker.id for worker in workers if worker.id in seen_at and worker.id != self._local_worker_id]
        oldest = min((seen_at[id_] for id_ in remote_ids), default=now)
        self._next_at = min(max(oldest + timedelta(seconds=self._timeout_s), now + _MIN_PERIOD), now + self._period)
        watched = self._watched_hosts(workers, seen_at, now)
        unwatched = {worker.id for worker in workers if worker.is_scheduler_host} - watched
        return tuple(event for event in lost if event.worker_id not in {self._local_worker_id, *unwatched})

    def _watched_hosts(self, workers: Iterable[Worker], seen_at: Mapping[str, datetime], now: datetime) -> set[str]:
        """The hosts of schedulers whose newest heartbeat was seen long ago, and by the looks since then."""
        is_interrupted = self._looked_at is None or now - self._looked_at > 1.5 * self._period
        first_seen = {} if is_interrupted else self._first_seen
        self._looked_at = now
        self._first_seen = {
            worker.id: (at, min(first_seen[worker.id][1], now) if first_seen.get(worker.id, ())[:1] == (at,) else now)
            for worker in workers
            if worker.is_scheduler_host and (at := seen_at.get(worker.id)) is not None
        }
        return {id_ for id_, (_, first) in self._first_seen.items() if now - first >= self._period}
