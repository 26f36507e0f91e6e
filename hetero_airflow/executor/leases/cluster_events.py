"""What a cluster reports: its workers, and why tasks that were handed over do not run yet."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from hetero_airflow.executor.task_log import Note
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Reason
from hetero_airflow.store.store import StartDelayed, Store, StoreEvent, WorkerAlive, WorkerLost, WorkerSeen

if TYPE_CHECKING:
    from hetero_airflow.engines.kubernetes.engine import KubernetesEngine

STARTING_TIME = timedelta(seconds=5)
"""Every task takes about this time to start. Before that, no reason for waiting is recorded."""


class ClusterEvents:
    """Records in the store what the engine's cluster reports. Does nothing for an engine without a cluster."""

    def __init__(self, store: Store, cluster: "KubernetesEngine | None", note: Note) -> None:
        self._store = store
        self._cluster = cluster
        self._note = note
        self._reasons: dict[str, Reason] = {}
        """Lease id → the last recorded reason."""

    def record_workers(self, now: datetime) -> None:
        """Record the changes of workers."""
        if self._cluster is None:
            return
        changes = self._cluster.poll()
        events: list[StoreEvent] = [
            *map(WorkerSeen, changes.seen),
            *map(WorkerAlive, changes.alive),
            *map(WorkerLost, changes.lost),
        ]
        if events:
            self._store.record(events, now)

    def record_wait_reasons(self, running: Iterable[tuple[Any, Lease]], now: datetime) -> None:
        """Record why tasks that were handed over do not run yet, if the reason is new."""
        if self._cluster is None:
            return
        reasons: dict[str, Reason] = {}
        events: list[StoreEvent] = []
        for key, lease in running:
            reason = self._cluster.status(lease.id).wait_reason if now - lease.granted_at >= STARTING_TIME else None
            before = self._reasons.get(lease.id)
            if reason is not None:
                reasons[lease.id] = reason
            if reason != before:
                events.append(StartDelayed(lease.request_id, reason))
            if reason is not None and (before is None or before.found != reason.found):
                self._note(key, f"Placed on {lease.worker_id}, but it does not run yet: {reason.found}")
        self._reasons = reasons
        if events:
            self._store.record(events, now)
