"""Keeps the leases of tasks that run, and frees them once the task is over and its processes are gone."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.engines.local import LocalEngine
from hetero_airflow.errors import StoreError
from hetero_airflow.executor.periods import Periods
from hetero_airflow.executor.task_instances import TaskInstances, TaskProcess
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.store.store import Move, Store

log = logging.getLogger(__name__)

Report = Callable[[Any, str, str | None], None]
"""(key, "success" or "failed", reason): tells the scheduler that a task has ended."""

_KILL_AFTER_S = 5.0
"""What processes that outlive their task get between SIGTERM and SIGKILL."""

_LOST_AFTER_S = 10.0
"""How long a task's process must be gone before its loss is reported here. The supervisor's own
report comes within a heartbeat of a few seconds and knows more."""

_WATCH_EVERY_S = 5.0


@dataclass(slots=True)
class RunningTask:
    """A task that was handed to the engine with its lease, or adopted from a scheduler that died."""

    key: Any
    lease: Lease
    is_adopted: bool = False
    """True if the engine will not report its end."""
    over_since: datetime | None = None
    """Since when its process is known to be gone, or Airflow does not want it any more."""


@dataclass(slots=True)
class EndingTask:
    """A task that is over for Airflow, whose lease waits for its processes to be gone."""

    lease: Lease
    to: LeaseState
    cause: str
    told_at: datetime | None = None
    """When its remaining processes were sent SIGTERM."""


class LeaseKeeper:
    """Answers for every lease from dispatch to release."""

    def __init__(
        self,
        store: Store,
        engine: LocalEngine,
        *,
        tasks: TaskInstances,
        report: Report,
        lease_timeout_s: float,
    ) -> None:
        self.running: dict[Any, RunningTask] = {}
        self._ending: dict[str, EndingTask] = {}
        self._store = store
        self._engine = engine
        self._tasks = tasks
        self._report = report
        self._lease_timeout = timedelta(seconds=lease_timeout_s)
        self._periods = Periods(renew=lease_timeout_s / 4, watch=_WATCH_EVERY_S)

    def begin(self, key: Any, lease: Lease, *, is_adopted: bool = False) -> None:
        """Answer for a lease from now on."""
        self.running[key] = RunningTask(key, lease, is_adopted)

    def end(self, key: Any, cause: str, to: LeaseState = LeaseState.RELEASED) -> None:
        """The task is over for Airflow. Its lease is freed at the next `free_ended` that finds its processes gone."""
        task = self.running.pop(key, None)
        if task is not None:
            self._ending[task.lease.id] = EndingTask(task.lease, to, cause)

    def holds_request(self, request_id: str) -> bool:
        """Whether a lease of the request is still to be freed."""
        return any(lease.request_id == request_id for lease in self._leases())

    def survives(self, key: Any) -> bool:
        """Whether the task runs although the engine reported its failure: another process got there first."""
        task = self.running[key]
        try:
            process = self._process(task.lease)
        except SQLAlchemyError:
            return False
        if process.state == "running" and self._liveness(task.lease, process) is Liveness.ALIVE:
            task.is_adopted = True
            return True
        return False

    def watch(self, now: datetime) -> None:
        """Renew the leases of what runs, and find what was lost."""
        if self._periods.is_due("renew", now):
            self._renew(now)
        if self.running and self._periods.is_due("watch", now):
            self._find_lost(now)

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""
        return self._liveness(lease, self._process(lease))

    def _leases(self) -> list[Lease]:
        return [*(task.lease for task in self.running.values()), *(task.lease for task in self._ending.values())]

    def _process(self, lease: Lease) -> TaskProcess:
        return self._tasks.processes([lease.request_id]).get(lease.request_id, TaskProcess())

    def _liveness(self, lease: Lease, process: TaskProcess) -> Liveness:
        if self._engine.processes({lease.id: (process.pid, process.started_at)}):
            return Liveness.ALIVE
        if process.state == "queued" or (process.hostname and not self._engine.is_local(process.hostname)):
            return Liveness.UNKNOWN
        return Liveness.GONE

    def free_ended(self, now: datetime) -> None:
        """Free the leases of ended tasks whose processes are gone; stop the processes that are left."""
        if not self._ending:
            return
        processes = self._tasks.processes([task.lease.request_id for task in self._ending.values()])
        known = {id_: processes.get(task.lease.request_id, TaskProcess()) for id_, task in self._ending.items()}
        left = self._engine.processes({id_: (process.pid, process.started_at) for id_, process in known.items()})
        for id_, pids in left.items():
            self._stop(self._ending[id_], known[id_], pids, now)
        gone = [task for id_, task in self._ending.items() if id_ not in left]
        outcomes = self._store.move([Move(t.lease.id, t.lease.token, t.to, t.cause) for t in gone], now)
        for task, outcome in zip(gone, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                log.warning("A lease had been taken back when its task ended: %s", outcome)
            del self._ending[task.lease.id]

    def _stop(self, task: EndingTask, process: TaskProcess, left: list[int], now: datetime) -> None:
        if task.told_at is None:
            task.told_at = now
            log.warning(
                "Lease %s: its task is over (%s), but processes %s still run. Its devices stay leased until they end.",
                task.lease.id,
                task.cause,
                left,
            )
            number = signal.SIGTERM
        elif now - task.told_at >= timedelta(seconds=_KILL_AFTER_S):
            number = signal.SIGKILL
        else:
            return
        self._engine.signal(task.lease.id, process.pid, process.started_at, number)

    def _renew(self, now: datetime) -> None:
        leases = self._leases()
        if not leases:
            return
        lost = self._store.renew([(lease.id, lease.token) for lease in leases], now + self._lease_timeout)
        for key, task in list(self.running.items()):
            if task.lease.id in lost:
                log.error("Lease %s of %s was taken back while its task ran; the task is stopped.", task.lease.id, key)
                process = self._process(task.lease)
                self._engine.signal(task.lease.id, process.pid, process.started_at, signal.SIGKILL)
                self._lose(key, "its device lease was taken back")

    def _find_lost(self, now: datetime) -> None:
        processes = self._tasks.processes([task.lease.request_id for task in self.running.values()])
        for key, task in list(self.running.items()):
            process = processes.get(task.lease.request_id, TaskProcess())
            if process.is_wanted and self._liveness(task.lease, process) is not Liveness.GONE:
                task.over_since = None
                continue
            task.over_since = task.over_since or now
            if now - task.over_since < timedelta(seconds=_LOST_AFTER_S):
                continue
            if process.is_wanted:
                self._lose(key, f"its process {process.pid} on {process.hostname} is gone")
            elif task.is_adopted:
                self._report(key, "success", None)
                self.end(key, "the task ended under another scheduler")

    def _lose(self, key: Any, cause: str) -> None:
        self._report(key, "failed", f"HeteroExecutor: {cause}")
        self.end(key, cause, LeaseState.EVICTED)
