"""Acts on the events of the lease keeper."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.contract.failures import evidence_of_loss
from hetero_airflow.engines.circuit_breaker import make_call
from hetero_airflow.engines.engine import AirflowEngine, termination_cause_of
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.cached_store import KnownWorkers
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.leases.kept_tasks import RunningTask
from hetero_airflow.executor.leases.lease_events import EndUnreported, LeaseEvent, LeaseFreed, RunLost, StartFailed
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper
from hetero_airflow.executor.leases.recovery import TaskRecovery
from hetero_airflow.executor.leases.spans import LeaseSpans
from hetero_airflow.executor.pending_task import TaskQueue
from hetero_airflow.executor.task_log import SchedulerCallbacks, write_task_log
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.recovery.rules import Action, Rule
from hetero_airflow.runtime.task_lease import task_lease
from hetero_airflow.store.sql.store import SqlStore

log = logging.getLogger(__name__)

_AFTER_REFUSAL = Rule(Action.REQUEUE, times=None, delay_s=10.0)
"""The pauses after refusals by a quota: 10 s, 20 s and so on up to 10 minutes."""


@dataclass
class LeaseEventHandler:
    """Sends lost tasks back, reports ends, and passes on what the end of a lease says about its devices."""

    store: SqlStore
    engine: AirflowEngine
    keeper: LeaseKeeper
    queue: TaskQueue
    workers: KnownWorkers
    recovery: TaskRecovery
    health: HealthWatch
    api: ExecutionApiWatch
    callbacks: SchedulerCallbacks
    spans: LeaseSpans
    _events: deque[LeaseEvent] = field(default_factory=deque)

    def handle(self, events: Iterable[LeaseEvent], now: datetime) -> None:
        """Act on events. If an outage of the store ends this early, the next call handles the events that are left."""
        self._events.extend(events)
        for _ in range(len(self._events)):
            match self._events.popleft():
                case LeaseFreed() as freed:
                    self.take_freed(freed, now)
                case EndUnreported(key):
                    self.callbacks.report(key, "success", None)
                case StartFailed(task, lease, ""):
                    self.queue.return_task(task, lease)
                case StartFailed() as refused:
                    self._take_refused(refused, now)
                case RunLost() as lost:
                    self._take_lost(lost, now)

    def _take_refused(self, failed: StartFailed, now: datetime) -> None:
        """Keep a task again that a quota of its cluster refused. The pause before the next try grows."""
        task, lease, refusal = failed
        delay_s = _AFTER_REFUSAL.delay_after_s(task.failed_starts) or 0.0
        text = f"The cluster refused it on {lease.worker}: {refusal}. It is tried again in {delay_s:g} s."
        write_task_log(task.workload.log_path, f"{text} This uses no retry.", now, "warning")
        self.queue.return_task(task, None, not_before=now + timedelta(seconds=delay_s))

    def _take_lost(self, lost: RunLost, now: datetime) -> None:
        """Send a lost task back, or report that it failed; in the next call if it is not known yet what becomes of it.

        Meanwhile it may be found to be lost again, or its end be reported.
        """
        key, lease, cause = lost
        if key not in self.keeper.running or self.keeper.running[key].lease.id != lease.id:
            return
        is_sent_back = self.send_back(lost, now)
        if is_sent_back is None:
            self._events.append(lost)
            return
        if not is_sent_back:
            self.callbacks.report(key, "failed", f"HeteroExecutor: {cause}")
        self.keeper.end(key, cause, LeaseState.EVICTED)

    def free_ended(self, now: datetime) -> None:
        """Free the leases of ended tasks, and act on that."""
        self.handle(self.keeper.free_ended(now, self.explain), now)

    def explain(self, key: Any, lease: Lease, end: RunEnd | None) -> Future[Failure | None]:
        """The failure that a run recorded; None if it finished, or recorded none."""
        if end is RunEnd.FINISHED:
            return make_call(lambda: None)
        return self.recovery.failure_of_lease(key, lease.token, self.health.host.fatal_xids(lease))

    def take_freed(self, freed: LeaseFreed, now: datetime) -> None:
        """Record the attained service of a lease, and what its failure says about its devices."""
        key, lease, end, answer = freed
        self.queue.attained_service.end(lease, self.workers.current().get(lease.worker_id), end, now)
        if (error := answer.exception()) is not None:
            log.warning("It is unknown whether a device caused the failure of %s: %s", key, error)
        elif (failure := answer.result()) is not None:
            self.health.report(failure, f"{key.dag_id}.{key.task_id}")
        self.spans.end_lease(key, lease, end, now)

    def keep_again(self, failed: RunningTask | None, now: datetime) -> bool:
        """Keep a task again that its supervisor could not start. Returns whether that was done.

        After an outage of the API server this costs nothing. A start that fails for another cause, such as a full disk
        of its worker, is tried again as often as the rule for network failures says. A cluster's pods fail to start
        for causes that the user has to remove, such as a wrong image.

        :param failed: see `EndReports.failed_start`
        """
        if failed is None or failed.start is None:
            return False
        task, lease = failed.start
        not_before = None
        text = f"It could not start on {lease.worker}, since Airflow's API server did not answer. It waits again."
        if not self.api.has_failed_since(failed.lease.granted_at):
            delay_s = self.recovery.delay_after_failed_starts(task.failed_starts)
            if delay_s is None or self.engine.cluster is not None:
                return False
            not_before = now + timedelta(seconds=delay_s)
            text = f"Its supervisor on {lease.worker} failed before it started. It is tried again in {delay_s:g} s."
        write_task_log(task.workload.log_path, f"{text} This uses no retry.", now, "warning")
        self.keeper.end(failed.key, "its supervisor could not start it", LeaseState.EVICTED, has_started=False)
        del self.keeper.unreported[failed.key]
        self.queue.return_task(task, lease, not_before=not_before)
        return True

    def send_back(self, lost: RunLost, now: datetime) -> bool | None:
        """Requeue a task whose process is lost. Returns whether that was done, now or before; None: not known yet."""
        key, lease, _ = lost
        if key in self.queue.tasks:  # its supervisor has reported how it ended, and Airflow has queued it again
            return True
        request = self._request_of(key, lease)
        if request is None:
            return False
        worker = self.workers.known(lease.worker_id)
        carried_lease = task_lease(lease, worker, request.request.alternatives[lease.alternative])
        cause = termination_cause_of(self.engine.cluster, lease)
        evidence = evidence_of_loss(cause, self.health.host.fatal_xids(lease))
        return self.recovery.send_back(key, lease.request_id, carried_lease, evidence, now)

    def last_lease(self, key: Any, request_id: str) -> Lease | None:
        """The last lease of a task instance on a worker that the engine reaches, ended or not; None without one."""
        history = self.store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        if history is None or history.pending.id != request_id:
            return None
        workers = self.workers.current()
        leases = (lease for lease in history.leases if lease.worker_id in workers)
        reachable = (lease for lease in leases if self.engine.reaches(workers[lease.worker_id]))
        return max(reachable, key=lambda lease: lease.token, default=None)

    def _request_of(self, key: Any, lease: Lease) -> PendingRequest | None:
        """The request of a lease, also if a cycle was faster and took the lease back."""
        holder = self.store.snapshot().holders.get(lease.request_id)
        if holder is not None:
            return holder
        history = self.store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        return history.pending if history is not None and history.pending.id == lease.request_id else None
