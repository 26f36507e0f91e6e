"""Hands placed tasks over to the engine; the cycle's `Engine`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from hetero_airflow.checkpoints.place import checkpoint_path
from hetero_airflow.clock import Clock
from hetero_airflow.contract.envelope import add_lease
from hetero_airflow.engines.engine import AirflowEngine, Liveness
from hetero_airflow.errors import EngineError
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.state_store import StateCalls
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.cached_store import KnownWorkers
from hetero_airflow.executor.gangs.roster import GangRoster
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper
from hetero_airflow.executor.leases.spans import LeaseSpans
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask, TaskQueue
from hetero_airflow.executor.task_log import SchedulerCallbacks, write_task_log
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker
from hetero_airflow.runtime.task_lease import TaskLease, task_lease


@dataclass
class TaskStarter:
    """Starts tasks of the queue on the leases that they got.

    :param airflow_queue: Airflow's queue of device tasks, which is mapped to the coordinator
    :param queued_timeout_s: how long Airflow's token of a task is valid; a task that waits longer gets a new one
    :param signer: signs what tasks are told about their leases
    """

    engine: AirflowEngine
    keeper: LeaseKeeper
    queue: TaskQueue
    workers: KnownWorkers
    gangs: GangRoster
    spans: LeaseSpans
    api: ExecutionApiWatch
    callbacks: SchedulerCallbacks
    clock: Clock
    airflow_queue: str
    queued_timeout_s: float
    signer: GrantSigner
    id: str = field(default_factory=lambda: uuid4().hex)
    """Names this scheduler in the leases whose tasks it starts. A restarted scheduler is another one."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """Request id → key of the tasks that take part in the current cycle."""
    _placed: list[tuple[PendingTask, TaskLease, datetime]] = field(default_factory=list)
    """The placed tasks whose logs do not say so yet."""

    def dispatch(self, lease: Lease) -> None:
        """Hand over the task of a lease that was just granted."""
        self.hand_over(self.queue.tasks[self.requests[lease.request_id]], lease)

    def is_ours(self, request_id: str) -> bool:
        """Whether the task of a request waits here, or runs under a lease that is kept here."""
        return request_id in self.requests or self.keeper.has_request(request_id)

    def reaches(self, worker_id: str) -> bool:
        """Whether the engine can run anything on the worker."""
        worker = self.workers.current().get(worker_id)
        return worker is not None and self.engine.reaches(worker)

    def open_slots(self) -> int | None:
        """How many more tasks would start at once."""
        return self.engine.open_slots()

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""
        return self.keeper.liveness(lease)

    def hand_over(self, task: PendingTask, lease: Lease) -> None:
        """Give a task its lease and hand it over to the engine; the lease is kept from then on.

        :raises EngineError: the engine can't run it there; the task has failed
        """
        worker, now = self.workers.known(lease.worker_id), self.clock.now()
        carried_lease = self._task_lease(task, lease, worker)
        workload, traits = task.workload, self.engine.traits
        workload.ti.queue = self.airflow_queue
        workload.ti.context_carrier = add_lease(workload.ti.context_carrier, carried_lease)
        if traits.start_timeout_s is not None or task.waited_s(now) > self.queued_timeout_s / 4:
            self.callbacks.renew_token(workload, traits.start_timeout_s)
        try:
            self.engine.hand_over(workload, lease, worker)
        except EngineError as error:
            self.queue.fail(workload.key, f"It can't run where it was placed: {error}", now)
            raise
        self.queue.take(workload.key)
        self.keeper.begin(workload.key, lease, (task, carried_lease))
        self._placed.append((task, carried_lease, now))

    def follow(self, key: Any, lease: Lease) -> None:
        """Keep the lease of a task that another scheduler started, and that has begun."""
        self.keeper.begin(key, lease)
        if self.engine.cluster is not None:
            self.engine.cluster.follow(key, lease)

    def _task_lease(self, task: PendingTask, lease: Lease, worker: Worker) -> TaskLease:
        """The lease as the task gets it."""
        assert task.request is not None
        ti = task.workload.ti
        start_s = self.engine.traits.start_timeout_s or self.queued_timeout_s
        grant = self.signer.sign(
            lease=lease.id,
            token=lease.token,
            task=checkpoint_path(ti.dag_id, ti.task_id, ti.run_id, -1 if ti.map_index is None else ti.map_index),
            start_by=math.ceil(self.clock.now().timestamp() + start_s),
        )
        carried_lease = task_lease(lease, worker, task.request.alternatives[lease.alternative])
        return carried_lease.model_copy(
            update={
                "alternative": task.original_number(lease.alternative),
                "gang": self.gangs.gang_of(lease, self.workers.current()) if task.member else None,
                "is_remote": not self.engine.traits.is_local,
                "grant": grant.pack(),
            }
        )

    def record_placed(self, tasks: TaskInstances, states: StateCalls, now: datetime | None = None) -> None:
        """Write into the tasks' logs and state stores where they were placed.

        :param now: wait until the oldest placement is `SETTLING_TIME` old, so as not to compete with its start
        """
        if now is not None and not (self._placed and now - self._placed[0][2] >= SETTLING_TIME):
            return
        placed, self._placed = self._placed, []
        for task, lease, at in placed:
            write_task_log(task.workload.log_path, f"Placed after {task.waited_s(at):.1f} s on {lease}", at)
            self.spans.end_wait(task.workload.ti, lease, task.since, at)
        tasks.record_leases(((task.workload, lease) for task, lease, _ in placed), states)
