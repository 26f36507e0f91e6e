"""Finds the lost workers that the store may forget."""

from datetime import datetime, timedelta

from hetero_airflow.executor.lost_worker_watch import PresenceStore
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.reaper import forgettable_workers
from hetero_airflow.store.store import WorkerForgotten

_MIN_LOST = timedelta(minutes=10)
"""A worker has this long to come back after this scheduler first saw that it was lost, as after an outage."""


class WorkerRetention:
    """Keeps lost workers for a time. The clock of the database's rows and of the caller may differ by seconds.

    :param forget_after_s: a lost worker that was not seen for this long may be forgotten
    :param history_s: the last worker of a type, or one with a hold, is kept for this long
    """

    def __init__(self, store: PresenceStore, forget_after_s: float, history_s: float) -> None:
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
