"""Finds the workers that have fallen silent, as soon as they have been for too long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.reaper import lost_workers
from hetero_airflow.store.store import Presence, Store, WorkerLost

_MIN_PERIOD = timedelta(seconds=1)
"""Between two looks."""


class PresenceStore(Store, Presence, Protocol):
    """A store that knows who is there."""


class LivenessTimeout:
    """Looks three times within the timeout, and once more when the first of the silent ones reaches it.

    :param own: the worker that this scheduler reports by itself, or None
    """

    def __init__(self, store: PresenceStore, timeout_s: float, own: str | None) -> None:
        self._store, self._timeout_s, self._own = store, timeout_s, own
        self._period = max(timedelta(seconds=timeout_s / 3), _MIN_PERIOD)
        self._next_at: datetime | None = None

    def find(self, now: datetime) -> tuple[WorkerLost, ...]:
        """The workers that are lost now; nothing where it is too early to look."""
        next_at = self._next_at
        if next_at is not None and next_at - self._period <= now < next_at:  # not so if a clock was set back
            return ()
        workers = [worker for worker in self._store.snapshot().workers if worker.state is WorkerState.ONLINE]
        seen, agents = self._store.last_seen(), self._store.heartbeats()
        lost = lost_workers(workers, seen, agents, self._store.server_heartbeat(), now, self._timeout_s)
        silent = [seen[worker.id] for worker in workers if worker.id in seen and worker.id != self._own]
        first = min(silent, default=now) + timedelta(seconds=self._timeout_s)
        self._next_at = min(max(first, now + _MIN_PERIOD), now + self._period)
        return tuple(event for event in lost if event.worker_id != self._own)
