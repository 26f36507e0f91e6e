"""Carries out what `reconcile` decides about the waiting tasks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hetero_airflow.errors import EngineError, RequestError
from hetero_airflow.executor.leases.lease_keeper import LeaseStore
from hetero_airflow.executor.leases.recovery import PreviousRuns, TaskRecovery
from hetero_airflow.executor.pending_task import PendingTask, TaskQueue
from hetero_airflow.executor.reconcile import (
    Action,
    DropTask,
    EndLease,
    FailTask,
    FollowRun,
    HandOverTask,
    SubmitTask,
    TakeOverRequest,
)
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.executor.task_starter import TaskStarter
from hetero_airflow.model.hold import with_holds
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.start_claim import StartClaimed

_DROPPED = "The task waits no longer, because its state in Airflow has changed. Its note and the audit log can say why."


@dataclass
class ActionRunner:
    """Changes the queue, and hands over tasks that have a lease already."""

    queue: TaskQueue
    starter: TaskStarter
    recovery: TaskRecovery
    resolver: RequestResolver
    store: LeaseStore

    def execute(self, actions: Iterable[Action], snapshot: Snapshot, now: datetime) -> None:
        """Carry out the actions, in order.

        :param snapshot: the one for which they were decided
        """
        actions = list(actions)
        self._resolve_requests([a.key for a in actions if isinstance(a, SubmitTask | HandOverTask)], snapshot, now)
        for action in actions:
            if action.key in self.queue.tasks:  # else its request can't be read
                self._carry_out(action, self.queue.tasks[action.key], snapshot, now)

    def _carry_out(self, action: Action, task: PendingTask, snapshot: Snapshot, now: datetime) -> None:
        match action:
            case DropTask(key):
                write_task_log(task.workload.log_path, _DROPPED, now)
                self.queue.drop(key, "Airflow does not want it any more")
            case FailTask(key, text):
                self.queue.fail(key, text, now)
            case TakeOverRequest(_, pending):
                task.since, task.request = pending.submitted_at, pending.request
            case SubmitTask() if task.request is not None:  # else its templates are not rendered yet
                self.queue.submit(task)
            case EndLease(key, lease):
                self.starter.keeper.end_left_over(key, lease)
            case FollowRun(key, lease):
                self.queue.take(key)
                self.starter.follow(key, lease)
            case HandOverTask(_, lease):
                self._hand_over(task, lease, snapshot, now)

    def _hand_over(self, task: PendingTask, lease: Lease, snapshot: Snapshot, now: datetime) -> None:
        """Start a task under the lease that the store has for it, once it can start."""
        if self.starter.api.outage is not None or self.starter.open_slots() == 0:
            return
        holder = snapshot.holders.get(task.request_id)
        task.request = holder.request if holder else task.request
        if task.request is None or not self._claim_start(lease, now):  # its templates are not rendered yet
            return
        self.queue.forget_events(task)  # the store knows the request
        with suppress(EngineError):  # the task has failed with it
            self.starter.hand_over(task, lease)

    def _claim_start(self, lease: Lease, now: datetime) -> bool:
        """Become the scheduler that starts the task of a lease; whether it is this one."""
        if lease.starter is None:
            self.store.record([StartClaimed(lease.id, lease.token, self.starter.id)], now)
            live = {live.id: live for live in self.store.snapshot().leases}
            lease = live.get(lease.id, lease)
        return lease.starter == self.starter.id

    def rotate_alternatives(self, now: datetime) -> None:
        """Let tasks that have waited too long try their next alternative first."""
        for task in self.queue.tasks.values():
            if task.request is None or task.is_excluded:
                continue
            original = task.original_request or task.request
            request, texts = self.recovery.rotated(original, task.waited_s(now))
            if request != task.request:
                task.original_request, task.request = original, request
                self.queue.withdraw(task, "its alternatives are tried in another order")
                self.queue.submit(task)
                for text in texts:
                    write_task_log(task.workload.log_path, text, now)

    def _resolve_requests(self, keys: Iterable[Any], snapshot: Snapshot, now: datetime) -> None:
        """Find and adjust the requests of new tasks. A task whose request can't be read fails."""
        requests: dict[Any, DeviceRequest] = {}
        for key in keys:
            task = self.queue.tasks[key]
            try:
                request = self.resolver.resolve(task, now) if task.request is None else None
            except RequestError as error:
                self.queue.fail(key, f"The device request can't be read: {error}", now)
                continue
            if request is not None:
                requests[key] = request
        tasks = {key: self.queue.tasks[key] for key in requests}
        previous_runs = self.recovery.previous_runs(
            {task.request_id: (key, task.workload.ti.try_number) for key, task in tasks.items()}
        )
        for key, request in requests.items():
            task = tasks[key]
            previous = previous_runs.get(task.request_id, PreviousRuns())
            if previous is None:  # not known yet
                task.requested = request
                continue
            if task.request_id in previous_runs:
                self._keep_place(task)
            is_new = not previous.failures and not task.not_started
            task.request = request if is_new else self._adjusted(request, task, previous, snapshot, now)

    def _keep_place(self, task: PendingTask) -> None:
        """Let a task that comes back keep its place in the queue, whichever scheduler had it before."""
        if self.queue.attained_service.knows(task.request_id):
            return
        ti = task.workload.ti
        map_index = -1 if ti.map_index is None else ti.map_index
        history = self.store.request_history(ti.dag_id, ti.run_id, ti.task_id, map_index)
        if history is not None and history.pending.id == task.request_id:
            self.queue.attained_service.take_over(history)

    def _adjusted(
        self, request: DeviceRequest, task: PendingTask, previous: PreviousRuns, snapshot: Snapshot, now: datetime
    ) -> DeviceRequest:
        """The request of a task that failed before, or did not start: with what it needs after that."""
        reachable = (worker for worker in snapshot.workers if self.starter.reaches(worker.id))
        workers = [with_holds(worker, snapshot.holds_of(worker.id)) for worker in reachable]
        request, texts = self.recovery.adjust(request, previous, task.not_started, workers, now)
        for text in texts:
            write_task_log(task.workload.log_path, text, now, "warning")
        return request
