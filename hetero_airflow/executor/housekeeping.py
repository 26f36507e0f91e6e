"""Periodic work that can wait until the engine has started what was placed."""

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from airflow.observability import stats

from hetero_airflow.clock import Periods
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.context.reported_speeds import ReportedSpeeds
from hetero_airflow.executor.device_health.spot_host import SpotHost
from hetero_airflow.executor.lost_worker_watch import LostWorkerWatch, WorkerRetention
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.host_data import HostData
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import SchedulerDecided, StoreEvent, WorkerSeen

_RUNNING_EVERY_S = 5.0
"""Airflow's own limit for heartbeats is 60 s or more, and a supervisor sends the next one some seconds after the end of
an outage."""

_HEARTBEAT_S = 5.0
"""The longest interval between two signs of life of this host and its scheduler, which a long timeout would stretch."""


class Housekeeping:
    """Keeps Airflow's rows, the store and the metrics up to date.

    :param read_devices: returns the newest readings of this host's devices
    :param look_at_data: returns what this host's data cache holds
    :param local_worker_id: the worker that this scheduler reports itself; None if the engine runs tasks elsewhere
    """

    def __init__(
        self,
        store: SqlStore,
        tasks: TaskInstances,
        context: PolicyContext,
        speeds: ReportedSpeeds,
        configuration: Configuration,
        api: ExecutionApiWatch,
        *,
        local_worker_id: str | None,
        read_devices: Callable[[], tuple[Telemetry, ...]],
        look_at_data: Callable[[], HostData] = HostData,
        queued_timeout_s: float,
    ) -> None:
        self.local_worker: Worker | None = None
        """This host, as in its last inventory."""
        self._read_devices = read_devices
        self._look_at_data = look_at_data
        self._stored_data: HostData | None = None
        self._store = store
        self._tasks = tasks
        self._context = context
        self._speeds = speeds
        self._api = api
        self._scheduler = f"{configuration.worker_id}:{os.getpid()}"
        self._history = timedelta(days=configuration.history_days)
        self._liveness = LostWorkerWatch(store, configuration.worker_timeout_s, local_worker_id)
        self._retention = WorkerRetention(store, configuration.forget_workers_after_s, self._history.total_seconds())
        self._spot_host = SpotHost(store, local_worker_id, configuration.spot_notices)
        self._periods = Periods(
            queued=queued_timeout_s / 4,
            running=_RUNNING_EVERY_S,
            heartbeat=min(configuration.worker_timeout_s / 3, _HEARTBEAT_S),
            saved=5,
            speeds=5,
            learn=60,
            data=10,
            demand=30,
            prune=3600,
            forget=min(configuration.forget_workers_after_s / 4, 3600),
        )

    def run(
        self,
        waiting_ids: Sequence[str],
        running_ids: Sequence[str],
        unleased_ids: Sequence[str],
        decided_at: datetime | None,
        now: datetime,
    ) -> None:
        """Do what is due.

        :param waiting_ids: the requests whose tasks wait here
        :param running_ids: the requests whose tasks run, or were handed over
        :param unleased_ids: in an outage of the API server, the tasks without a lease that the engine has
        :param decided_at: when the scheduler last completed a cycle; None before the first
        """
        self._spot_host.step(now)
        self._refresh_tasks([*waiting_ids, *running_ids], [*running_ids, *unleased_ids], now)
        if self._periods.is_due("heartbeat", now):
            self._record_signs_of_life(decided_at, now)
        self._store.record(self._liveness.find_lost(now), now)
        if self._store.snapshot().pending and self._periods.is_due("saved", now):
            self._store.record(self._speeds.saved(), now)
        has_speeds = self._periods.is_due("speeds", now) and self._speeds.keep(now)
        if self._periods.is_due("learn", now) or has_speeds:
            self._context.refresh()
        if self._periods.is_due("data", now):
            self._context.read_data()
        if self._periods.is_due("demand", now):
            emit_demand(self._store.snapshot())
        if self._periods.is_due("prune", now):
            self._store.prune(now - self._history)
        if self._periods.is_due("forget", now):
            self._store.record(self._retention.find_forgettable(now), now)

    def _record_signs_of_life(self, decided_at: datetime | None, now: datetime) -> None:
        """Record that this host is there, with what is new there, and that its scheduler decides."""
        events: list[StoreEvent] = []
        data = self._stored_data
        if self.local_worker:
            data = self._look_at_data()
            new_data = None if data == self._stored_data else data
            events.append(WorkerSeen(self.local_worker, self._read_devices(), data=new_data))
        if decided_at is not None:
            events.append(SchedulerDecided(self._scheduler, decided_at))
        self._store.record(events, now)
        self._stored_data = data

    def _refresh_tasks(self, queued_ids: Sequence[str], running_ids: Sequence[str], now: datetime) -> None:
        """Keep Airflow from giving up tasks that have to wait, or whose heartbeats can't arrive."""
        if self._periods.is_due("queued", now):
            self._tasks.refresh_queued(queued_ids, now)
        if self._api.outage is not None and self._periods.is_due("running", now):
            self._tasks.refresh_running(running_ids, now)


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
