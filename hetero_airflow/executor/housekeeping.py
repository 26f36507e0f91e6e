"""Periodic work that can wait until the engine has started what was placed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from airflow.observability import stats

from hetero_airflow.clock import Periods
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.leases.preemption import PreemptionNotices
from hetero_airflow.executor.lost_worker_watch import LostWorkerWatch
from hetero_airflow.executor.retention import WorkerRetention
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerSeen


class Housekeeping:
    """Keeps Airflow's rows, the store and the metrics up to date.

    :param local_worker_id: the worker that this scheduler reports itself; None if the engine runs tasks elsewhere
    """

    def __init__(
        self,
        store: SqlStore,
        tasks: TaskInstances,
        context: PolicyContext,
        preemptions: PreemptionNotices,
        configuration: Configuration,
        *,
        local_worker_id: str | None,
        queued_timeout_s: float,
    ) -> None:
        self.local_worker: Worker | None = None
        """This host, as in its last inventory."""
        self._store = store
        self._tasks = tasks
        self._context = context
        self._preemptions = preemptions
        self._history = timedelta(days=configuration.history_days)
        self._liveness = LostWorkerWatch(store, configuration.worker_timeout_s, local_worker_id)
        self._retention = WorkerRetention(store, configuration.forget_workers_after_s, self._history.total_seconds())
        self._periods = Periods(
            queued=queued_timeout_s / 4,
            heartbeat=configuration.worker_timeout_s / 3,
            saved=5,
            learn=60,
            demand=30,
            prune=3600,
            forget=min(configuration.forget_workers_after_s / 4, 3600),
        )

    def run(self, request_ids: Iterable[str], now: datetime) -> None:
        """Do what is due.

        :param request_ids: the requests whose tasks wait or run here
        """
        if self._periods.is_due("queued", now):
            self._tasks.refresh_queued(list(request_ids), now)
        if self._periods.is_due("heartbeat", now):
            self._store.record([WorkerSeen(self.local_worker)] if self.local_worker else [], now)
        self._store.record(self._liveness.find_lost(now), now)
        if self._store.snapshot().pending and self._periods.is_due("saved", now):
            self._store.record(self._preemptions.saved(), now)
        if self._periods.is_due("learn", now):
            self._context.refresh()
        if self._periods.is_due("demand", now):
            emit_demand(self._store.snapshot())
        if self._periods.is_due("prune", now):
            self._store.prune(now - self._history)
        if self._periods.is_due("forget", now):
            self._store.record(self._retention.find_forgettable(now), now)


def emit_demand(snapshot: Snapshot) -> None:
    """Emit as Airflow metrics how many workers the waiting requests need. Every known type is emitted each time.

    =================================== ===================================================================
    ``hetero.wanted_workers.<type>``    more workers of the type that would let all waiting requests start
    ``hetero.requests.waiting``         requests that wait for devices
    ``hetero.requests.unservable``      waiting requests that no known type of worker can serve
    =================================== ===================================================================
    """
    demand = wanted_workers(snapshot)
    for wanted in demand.types:
        stats.gauge(f"hetero.wanted_workers.{wanted.type.replace('.', '_')}", wanted.workers)
    stats.gauge("hetero.requests.waiting", demand.waiting)
    stats.gauge("hetero.requests.unservable", demand.unservable)
