"""What a cluster says, for those engines that have one: its workers, and why work that was handed over does not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.engines.engine import Cluster
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Reason
from hetero_airflow.store.store import StartDelayed, Store, StoreEvent, WorkerAlive, WorkerLost, WorkerSeen

STARTING_TIME = timedelta(seconds=5)
"""Work that was handed over for less is starting, as all work does."""


class ClusterEvents:
    """Carries it to the store. Of an engine without a cluster there is never any.

    :param note: (key, text): tells those who look at the task in Airflow
    """

    def __init__(self, store: Store, cluster: Cluster | None, note: Callable[[Any, str], None]) -> None:
        self._store = store
        self._cluster = cluster
        self._note = note
        self._told: dict[str, Reason] = {}

    def record_workers(self, now: datetime) -> None:
        """Record what is new of workers."""
        if self._cluster is None:
            return
        news = self._cluster.poll()
        events: list[StoreEvent] = [
            *map(WorkerSeen, news.seen),
            *map(WorkerAlive, news.alive),
            *map(WorkerLost, news.lost),
        ]
        if events:
            self._store.record(events, now)

    def record_wait_reasons(self, running: Iterable[tuple[Any, Lease]], now: datetime) -> None:
        """Record why work that was handed over does not run yet, where that is news."""
        if self._cluster is None:
            return
        told: dict[str, Reason] = {}
        events: list[StoreEvent] = []
        for key, lease in running:
            reason = self._cluster.status(lease.id).wait_reason if now - lease.granted_at >= STARTING_TIME else None
            before = self._told.get(lease.id)
            if reason is not None:
                told[lease.id] = reason
            if reason != before:
                events.append(StartDelayed(lease.request_id, reason))
            if reason is not None and (before is None or before.found != reason.found):
                self._note(key, f"Placed on {lease.worker_id}, but it does not run yet: {reason.found}")
        self._told = told
        if events:
            self._store.record(events, now)
