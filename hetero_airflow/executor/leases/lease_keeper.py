"""Keeps the leases of tasks that run, and frees them once the task is over and its processes are gone."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.engines.engine import AirflowEngine, LeasedProcess, Liveness, termination_cause_of
from hetero_airflow.errors import StoreError
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances, TaskProcess
from hetero_airflow.executor.periods import Periods
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.store import LeaseMove, Store

log = logging.getLogger(__name__)

Report = Callable[[Any, str, str | None], None]
"""(key, "success" or "failed", reason): tells the scheduler that a task has ended."""

Freed = Callable[[Any, Lease, RunEnd | None], None]
"""(key, lease, how its task stood): told when the devices are free. None: the process was lost."""

Lost = Callable[[Any, Lease], bool]
"""(key, lease) of a task whose process is lost: whether it was sent back to be scheduled. Else Airflow is told."""

_KILL_AFTER_S = 5.0
"""What processes that outlive their task get between SIGTERM and SIGKILL."""

_LOST_AFTER_S = 10.0
"""How long a task's process must be gone before its loss is reported here. The supervisor's own
report comes within a heartbeat of a few seconds and knows more."""

_WATCH_EVERY_S = 5.0

_RUN_ENDS: dict[str | None, RunEnd] = {
    TaskInstanceState.SUCCESS: RunEnd.FINISHED,
    TaskInstanceState.DEFERRED: RunEnd.PAUSED,
    TaskInstanceState.UP_FOR_RESCHEDULE: RunEnd.PAUSED,
}
"""State of a task instance whose process is gone → how the task stood; FAILED for all others. The engine can't tell:
LocalExecutor reports success of every process that ended in order, that of a task that raised too."""


@dataclass(slots=True)
class RunningTask:
    """A task that was handed to the engine with its lease, or adopted from a scheduler that died."""

    key: Any
    lease: Lease
    return_to_queue: Callable[[], None] | None = None
    """Puts it back into the queue, with the same try; None if it was adopted while it ran."""
    over_since: datetime | None = None
    """Since when its process is known to be gone, or Airflow does not want it any more."""
    is_heartbeat_lost: bool = False
    """Airflow has not heard of it for too long: its worker may be frozen, and its process still there."""


@dataclass(slots=True)
class EndingTask:
    """A task that is over for Airflow, whose lease waits for its processes to be gone."""

    key: Any
    lease: Lease
    to: LeaseState
    cause: str
    has_begun: bool = True
    """Its process was there: that the task instance is QUEUED again says nothing of this lease."""
    told_at: datetime | None = None
    """When its remaining processes were sent SIGTERM."""


class LeaseKeeper:
    """Answers for every lease from dispatch to release."""

    def __init__(
        self,
        store: Store,
        engine: AirflowEngine,
        *,
        tasks: TaskInstances,
        report: Report,
        freed: Freed,
        lost: Lost,
        lease_timeout_s: float,
    ) -> None:
        self.running: dict[Any, RunningTask] = {}
        self._ending: dict[str, EndingTask] = {}
        self._store = store
        self._engine = engine
        self._tasks = tasks
        self._report = report
        self._freed = freed
        self._lost = lost
        self._lease_timeout = timedelta(seconds=lease_timeout_s)
        self._seen: dict[str, tuple[datetime, Liveness]] = {}
        self._given_up: set[Any] = set()
        """Tasks of which the engine may still report an end that is not theirs."""
        self._now = datetime.min.replace(tzinfo=UTC)
        self._periods = Periods(renew=lease_timeout_s / 3, watch=_WATCH_EVERY_S)

    def begin(self, key: Any, lease: Lease, return_to_queue: Callable[[], None] | None = None) -> None:
        """Answer for a lease from now on."""
        self.running[key] = RunningTask(key, lease, return_to_queue)

    def end(self, key: Any, cause: str, to: LeaseState = LeaseState.RELEASED, *, has_begun: bool = True) -> None:
        """The task is over for Airflow. Its lease is freed at the next `free_ended` that finds its processes gone."""
        task = self.running.pop(key, None)
        if task is not None:
            self._ending[task.lease.id] = EndingTask(key, task.lease, to, cause, has_begun)

    def mark_heartbeat_lost(self, key: Any) -> None:
        """Airflow has not heard of the task for too long: it is lost, whatever the engine still has of it.

        Concluded at the next `watch`, since the scheduler says so in the middle of a transaction.
        """
        self.running[key].is_heartbeat_lost = True

    def find(self, lease_id: str) -> RunningTask | None:
        """The task that runs under a lease."""
        return next((task for task in self.running.values() if task.lease.id == lease_id), None)

    def holds_request(self, request_id: str) -> bool:
        """Whether a lease of the request is still to be freed."""
        return any(lease.request_id == request_id for lease in self._leases())

    def survives(self, key: Any, *, failed: bool) -> bool:
        """Whether the task runs although the engine reported its end: of another process, slower or given up before."""
        if not failed and key not in self._given_up:
            return False
        task = self.running[key]
        try:
            process = self._process(task.lease)
        except SQLAlchemyError:
            return False
        return process.state == "running" and self._look([(task.lease, process)])[task.lease.id] is Liveness.ALIVE

    def is_lost(self, key: Any) -> bool:
        """Whether a cluster says that a task was lost: then `watch` concludes what follows, and no report of an end."""
        return termination_cause_of(self._engine.cluster, self.running[key].lease) is not None

    def is_scheduled_again(self, key: Any) -> bool:
        """Whether Airflow is about to queue the task anew, so that it would take any end for that of the coming run."""
        try:
            return self._process(self.running[key].lease).state == TaskInstanceState.SCHEDULED
        except SQLAlchemyError:
            return False

    def watch(self, now: datetime) -> None:
        """Renew the leases of what runs, and find what was lost."""
        self._now = now
        if self._periods.is_due("renew", now):
            self._renew(now)
        if self.running and self._periods.is_due("watch", now):
            self._find_lost(now)

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs, as it was at most a few seconds ago: each look scans all processes."""
        seen = self._seen.get(lease.id)
        if seen is None or not timedelta(0) <= self._now - seen[0] < timedelta(seconds=_WATCH_EVERY_S):
            live = {known.id for known in self._store.snapshot().leases}
            self._seen = {id_: one for id_, one in self._seen.items() if id_ in live}
            seen = self._seen[lease.id] = (self._now, self._look([(lease, self._process(lease))])[lease.id])
        return seen[1]

    def _leases(self) -> list[Lease]:
        return [*(task.lease for task in self.running.values()), *(task.lease for task in self._ending.values())]

    def _process(self, lease: Lease) -> TaskProcess:
        return self._tasks.processes([lease.request_id]).get(lease.request_id, TaskProcess())

    def _look(self, tasks: Sequence[tuple[Lease, TaskProcess]]) -> Mapping[str, Liveness]:
        """Lease id → whether a process of it runs."""
        return self._engine.liveness_of([self._use(lease, process) for lease, process in tasks])

    def _use(self, lease: Lease, process: TaskProcess) -> LeasedProcess:
        ending = self._ending.get(lease.id)
        is_ours = ending is not None or self.find(lease.id) is not None
        state = None if ending is not None and ending.has_begun else process.state
        return LeasedProcess(lease, state, process.pid, process.hostname, process.seen_at, is_ours)

    def free_ended(self, now: datetime) -> None:
        """Free the leases of ended tasks whose processes are gone; stop the processes that are left."""
        self._now = now
        if not self._ending:
            return
        processes = self._tasks.processes([task.lease.request_id for task in self._ending.values()])
        known = {id_: processes.get(task.lease.request_id, TaskProcess()) for id_, task in self._ending.items()}
        found = self._look([(task.lease, known[id_]) for id_, task in self._ending.items()])
        for id_, task in self._ending.items():
            if found[id_] is Liveness.ALIVE:
                self._stop(task, known[id_], now)
        gone = [task for id_, task in self._ending.items() if found[id_] is Liveness.GONE]
        moves = [_final_move(task, known[task.lease.id]) for task in gone]
        for task, move, outcome in zip(gone, moves, self._store.move(moves, now), strict=True):
            if isinstance(outcome, StoreError):
                log.warning("A lease had been taken back when its task ended: %s", outcome)
            del self._ending[task.lease.id]
            self._freed(task.key, task.lease, move.end)

    def _stop(self, task: EndingTask, process: TaskProcess, now: datetime) -> None:
        if task.told_at is None:
            task.told_at = now
            log.warning(
                "Lease %s: its task is over (%s), but its processes still run. Its devices stay leased until they end.",
                task.lease.id,
                task.cause,
            )
            number = signal.SIGTERM
        elif now - task.told_at >= timedelta(seconds=_KILL_AFTER_S):
            number = signal.SIGKILL
        else:
            task.told_at = min(task.told_at, now)
            return
        self._engine.signal(self._use(task.lease, process), number)

    def _renew(self, now: datetime) -> None:
        leases = self._leases()
        if not leases:
            return
        lost = self._store.renew([(lease.id, lease.token) for lease in leases], now + self._lease_timeout)
        for key, task in list(self.running.items()):
            if task.lease.id in lost:
                log.error("Lease %s of %s was taken back while its task ran; the task is stopped.", task.lease.id, key)
                self._engine.signal(self._use(task.lease, self._process(task.lease)), signal.SIGKILL)
                self._lose(key, "its device lease was taken back")

    def _find_lost(self, now: datetime) -> None:
        known = self._tasks.processes([task.lease.request_id for task in self.running.values()])
        processes = {key: known.get(task.lease.request_id, TaskProcess()) for key, task in self.running.items()}
        liveness = self._look([(task.lease, processes[key]) for key, task in self.running.items()])
        lost = {worker.id for worker in self._store.snapshot().workers if worker.state is WorkerState.LOST}
        for key, task in list(self.running.items()):
            process = processes[key]
            is_gone = liveness[task.lease.id] is Liveness.GONE
            if task.is_heartbeat_lost or (
                is_gone and (task.lease.worker_id in lost or termination_cause_of(self._engine.cluster, task.lease))
            ):
                self._handle_lost_run(key, task, process)
                continue
            if process.is_wanted and liveness[task.lease.id] is not Liveness.GONE:
                task.over_since = None
                continue
            task.over_since = min(task.over_since or now, now)  # a clock may be set back
            if now - task.over_since >= timedelta(seconds=_LOST_AFTER_S):
                self._handle_lost_run(key, task, process)

    def _handle_lost_run(self, key: Any, task: RunningTask, process: TaskProcess) -> None:
        """What the engine should have reported and did not."""
        if not process.is_wanted:
            if process.state != TaskInstanceState.SCHEDULED:  # else it would be the end of the run that is to come
                self._report(key, "success", None)
            self.end(key, "Airflow does not want the task any more")
        elif process.state == "queued" and task.return_to_queue is not None and not self._has_run(task.lease):
            log.warning("The engine lost %s before it began; it is held again.", key)
            self.end(key, "the engine lost the task before it began", LeaseState.EVICTED, has_begun=False)
            task.return_to_queue()
        elif task.is_heartbeat_lost:
            self._given_up.add(key)
            self._lose(key, "Airflow has not heard of it for too long")
        else:
            self._lose(key, self._loss(task.lease, process))

    def _has_run(self, lease: Lease) -> bool:
        """Whether a process of the lease has run for certain, though Airflow may not have heard of it."""
        loss = termination_cause_of(self._engine.cluster, lease)
        return loss is not None and loss.is_out_of_memory

    def _loss(self, lease: Lease, process: TaskProcess) -> str:
        """What became of the process of a lease, as far as is known."""
        cluster = self._engine.cluster
        message = None if cluster is None else cluster.status(lease.id).message
        return message or f"its process {process.pid} on {process.hostname or lease.worker_id} is gone"

    def _lose(self, key: Any, cause: str) -> None:
        if not self._lost(key, self.running[key].lease):
            self._report(key, "failed", f"HeteroExecutor: {cause}")
        self.end(key, cause, LeaseState.EVICTED)


def _final_move(task: EndingTask, process: TaskProcess) -> LeaseMove:
    end = None if task.to is LeaseState.EVICTED else _RUN_ENDS.get(process.state, RunEnd.FAILED)
    return LeaseMove(task.lease.id, task.lease.token, task.to, task.cause, end)
