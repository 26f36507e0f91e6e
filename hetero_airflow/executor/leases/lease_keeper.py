"""Keeps the leases of running tasks, and frees them when the task is over and its processes are gone."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from airflow.utils.state import TaskInstanceState

from hetero_airflow.clock import Periods
from hetero_airflow.engines.engine import AirflowEngine, LeasedProcess, Liveness, termination_cause_of
from hetero_airflow.errors import StoreError
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances, TaskProcess
from hetero_airflow.executor.leases.kept_tasks import EndingTask, RunningTask, final_move, warn_of_processes
from hetero_airflow.executor.leases.lease_events import EndUnreported, LeaseEvent, LeaseFreed, RunLost, StartFailed
from hetero_airflow.executor.leases.lease_use import LeaseUse, has_begun, is_running, lease_use, process_of_lease
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.runtime.task_lease import TaskLease
from hetero_airflow.store.store import History, Store

log = logging.getLogger(__name__)

_KILL_AFTER_S = 5.0
"""The time between SIGTERM and SIGKILL for processes that outlive their task."""

_LOST_AFTER_S = 10.0
"""A task's process must be gone for so long before its loss is reported here. The supervisor's own report comes within
a heartbeat of a few seconds, and knows more."""

_WATCH_EVERY_S = 5.0

_MAX_UNREPORTED = 10_000
"""Number of tasks that are remembered because the engine has not reported their end."""


Explain = Callable[[Any, Lease, RunEnd | None], Future[Failure | None]]
"""Returns the failure that a run under a lease recorded, from its task's key, the lease and how the run ended."""


class LeaseStore(Store, History, Protocol):
    """A store with the history of requests."""


class LeaseKeeper:
    """Is responsible for every lease from dispatch to release. `LeaseEventHandler` acts on its events."""

    def __init__(self, store: LeaseStore, engine: AirflowEngine, tasks: TaskInstances, lease_timeout_s: float) -> None:
        self.running: dict[Any, RunningTask] = {}
        self._ending: dict[str, EndingTask] = {}
        self._store = store
        self._engine = engine
        self._tasks = tasks
        self._lease_timeout = timedelta(seconds=lease_timeout_s)
        self._liveness: dict[str, tuple[datetime, Liveness]] = {}
        self.unreported: dict[Any, None] = {}
        """Keys of runs that were ended here. The engine may still report the end of their processes."""
        self._now = datetime.min.replace(tzinfo=UTC)
        self._periods = Periods(renew=lease_timeout_s / 3, watch=_WATCH_EVERY_S)

    def begin(self, key: Any, lease: Lease, start: tuple[PendingTask, TaskLease] | None = None) -> None:
        """Be responsible for a lease from now on."""
        self.running[key] = RunningTask(key, lease, start)

    def end(self, key: Any, cause: str, to: LeaseState = LeaseState.RELEASED, *, has_started: bool = True) -> None:
        """The task is over for Airflow. The next `free_ended` that finds its processes gone frees its lease."""
        task = self._forget(key)
        if task is not None:
            self._ending[task.lease.id] = EndingTask(key, task.lease, to, cause, has_started)

    def _forget(self, key: Any) -> RunningTask | None:
        """Remove a task that is over, or another scheduler's. A report of its end that comes later says nothing."""
        task = self.running.pop(key, None)
        if task is not None:
            self.unreported[key] = None
            if len(self.unreported) > _MAX_UNREPORTED:
                del self.unreported[next(iter(self.unreported))]
        return task

    def end_left_over(self, key: Any, lease: Lease) -> None:
        """Free the lease of an earlier run whose task is queued again, as `end` does; see `LeaseUse.LEFT_OVER`.

        Another scheduler may be ending it at the same time. The store ends it once.
        """
        cause = "its task was queued again"
        self._ending[lease.id] = EndingTask(key, lease, LeaseState.RELEASED, cause, is_end_known=False)

    def uses_of(self, leases: Sequence[Lease], scheduler: str) -> dict[str, LeaseUse]:
        """Lease id → its use, for leases of waiting tasks that are not kept here; out of reach, only `BEGUN`."""
        if not leases:
            return {}
        processes = self._tasks.processes([lease.request_id for lease in leases])
        tasks = [(lease, processes.get(lease.request_id, TaskProcess())) for lease in leases]
        liveness = self.liveness_of(tasks)
        uses = {lease.id: lease_use(lease, process, liveness[lease.id], scheduler) for lease, process in tasks}
        far = {lease.id for lease in leases if not self._is_in_reach(lease)}
        return {id_: use for id_, use in uses.items() if id_ not in far or use is LeaseUse.BEGUN}

    def mark_heartbeat_lost(self, key: Any) -> bool:
        """Airflow has had no heartbeat of the task for too long: it is lost, whatever the engine still has of it.

        The next `find_lost` acts on it, since the scheduler calls this in the middle of a transaction. Returns whether
        the task runs here.
        """
        task = self.running.get(key)
        if task is not None:
            task.is_heartbeat_lost = True
        return task is not None

    def find(self, lease_id: str) -> RunningTask | None:
        """The task that runs under a lease."""
        return next((task for task in self.running.values() if task.lease.id == lease_id), None)

    def has_request(self, request_id: str) -> bool:
        """Whether a lease of the request is not free yet."""
        return any(lease.request_id == request_id for lease in self._leases())

    def request_ids(self) -> set[str]:
        """The requests whose leases are not free yet."""
        return {lease.request_id for lease in self._leases()}

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs, as of a few seconds ago at most: each look scans all processes."""
        latest = self._liveness.get(lease.id)
        if latest is None or not timedelta(0) <= self._now - latest[0] < timedelta(seconds=_WATCH_EVERY_S):
            live = {stored.id for stored in self._store.snapshot().leases}
            self._liveness = {id_: earlier for id_, earlier in self._liveness.items() if id_ in live}
            liveness = self.liveness_of([(lease, self.process(lease))])[lease.id]
            latest = self._liveness[lease.id] = (self._now, liveness)
        return latest[1]

    def process(self, lease: Lease) -> TaskProcess:
        """Airflow's row of the task of a lease."""
        return self._tasks.processes([lease.request_id]).get(lease.request_id, TaskProcess())

    def liveness_of(self, tasks: Sequence[tuple[Lease, TaskProcess]]) -> Mapping[str, Liveness]:
        """Lease id → whether a process of it runs."""
        return self._engine.liveness_of([self._leased_process(lease, process) for lease, process in tasks])

    def free_ended(self, now: datetime, explain: Explain) -> list[LeaseFreed]:
        """Free the leases of ended tasks whose processes are gone; stop the processes that are left.

        :param explain: the failure of a run, which may be its device's: the lease is freed when that is known
        """
        self._now = now
        process_of = self._processes_of_ending()
        if not process_of:
            return []
        liveness = self.liveness_of([(task.lease, process_of[id_]) for id_, task in self._ending.items()])
        alive = [task for id_, task in self._ending.items() if liveness[id_] is Liveness.ALIVE]
        warn_of_processes([task for task in alive if task.stopped_at is None])
        for task in alive:
            self._stop(task, process_of[task.lease.id], now)
        gone_tasks = [task for id_, task in self._ending.items() if liveness[id_] is Liveness.GONE]
        ends = [(task, final_move(task, process_of[task.lease.id])) for task in gone_tasks]
        explained = [(task, move, explain(task.key, task.lease, move.end)) for task, move in ends]
        over = [end for end in explained if end[2].done()]
        freed = []
        for (task, move, failure), outcome in zip(over, self._store.move([end[1] for end in over], now), strict=True):
            del self._ending[task.lease.id]
            if isinstance(outcome, StoreError):
                log.info("A lease had already ended: %s", outcome)
            else:
                freed.append(LeaseFreed(task.key, task.lease, move.end, failure))
        return freed

    def _processes_of_ending(self) -> dict[str, TaskProcess]:
        """Lease id → Airflow's row of its task, for the leases that are to end. Others are forgotten here.

        They were ended elsewhere, or their runs have begun after all: `reconcile` lets the waiting tasks follow them.
        """
        live = self._live_ids() if self._ending else set()
        ending = {id_: task for id_, task in self._ending.items() if id_ in live}
        processes = self._tasks.processes([task.lease.request_id for task in ending.values()])
        process_of = {id_: processes.get(task.lease.request_id, TaskProcess()) for id_, task in ending.items()}
        begun = {id_ for id_, task in ending.items() if task.may_begin and is_running(task.lease, process_of[id_])}
        self._ending = {id_: task for id_, task in ending.items() if id_ not in begun}
        return {id_: process_of[id_] for id_ in self._ending}

    def renew(self, now: datetime) -> list[LeaseEvent]:
        """Renew all leases, if it is time. The runs that go on although their leases were ended are lost.

        The lease of an ended task on a host out of reach is left to expire: a scheduler of that host can tell whether
        its processes are gone.
        """
        self._now = now
        if not self._periods.is_due("renew", now):
            return []
        leases = [task.lease for task in self.running.values()]
        leases += [task.lease for task in self._ending.values() if self._is_in_reach(task.lease)]
        if not leases:
            return []
        ended = self._store.renew([(lease.id, lease.token) for lease in leases], now + self._lease_timeout)
        return self._drop_ended([task for task in self.running.values() if task.lease.id in ended])

    def _drop_ended(self, tasks: Sequence[RunningTask]) -> list[LeaseEvent]:
        """Forget tasks whose leases were ended: that is final, and a newer run is not ours.

        A task that still runs under its ended lease is stopped and lost. One that has not begun waits again.
        """
        events: list[LeaseEvent] = []
        for task in tasks:
            key, lease, process = task.key, task.lease, self.process(task.lease)
            earlier = self._earlier_leases(key, lease)
            if process.state == TaskInstanceState.RUNNING and earlier is not None:
                log.error("Lease %s of %s was taken back while its task ran. The task is stopped.", lease.id, key)
                self._engine.signal(self._leased_process(lease, process), signal.SIGKILL)
                events.append(RunLost(key, lease, "its device lease was taken back"))
                continue
            self._forget(key)
            is_clock_behind = any(past_lease.granted_at > lease.granted_at for past_lease in earlier or ())
            is_unused = is_clock_behind or not has_begun(lease, process)
            is_queued = process.state == TaskInstanceState.QUEUED
            if is_queued and is_unused and earlier is not None and task.start is not None:
                log.warning("Lease %s of %s was ended before its task began. The task waits again.", lease.id, key)
                events.append(StartFailed(*task.start))
            else:
                log.warning("Lease %s of %s has already ended. Nothing is stopped.", lease.id, key)
        return events

    def _earlier_leases(self, key: Any, lease: Lease) -> Sequence[Lease] | None:
        """The task's leases before this one; None if it has a later one, whose run the process in Airflow's row is."""
        history = self._store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        if history is None or history.pending.id != lease.request_id:
            return None
        is_newest = all(past_lease.token <= lease.token for past_lease in history.leases)
        return [past_lease for past_lease in history.leases if past_lease.token < lease.token] if is_newest else None

    def find_lost(self, now: datetime, *, can_report: bool) -> list[LeaseEvent]:
        """The running tasks whose processes are gone, if it is time to look.

        :param can_report: whether heartbeats and ends reach Airflow. If not, their absence says nothing, and they get
            their time again afterwards
        """
        if not can_report:
            for task in self.running.values():
                task.over_since, task.is_heartbeat_lost = None, False
        if not can_report or not self.running or not self._periods.is_due("watch", now):
            return []
        process_of = self._tasks.processes([task.lease.request_id for task in self.running.values()])
        processes = {key: process_of.get(task.lease.request_id, TaskProcess()) for key, task in self.running.items()}
        liveness = self.liveness_of([(task.lease, processes[key]) for key, task in self.running.items()])
        lost_workers = {worker.id for worker in self._store.snapshot().workers if worker.state is WorkerState.LOST}
        events: list[LeaseEvent] = []
        live = self._live_ids()  # `renew` judges the others: Airflow's row may show a newer run of theirs
        for key, task in [(key, task) for key, task in self.running.items() if task.lease.id in live]:
            process, is_gone = processes[key], liveness[task.lease.id] is Liveness.GONE
            is_certain = task.is_heartbeat_lost or (
                is_gone
                and (task.lease.worker_id in lost_workers or termination_cause_of(self._engine.cluster, task.lease))
            )
            if not is_certain and process.is_wanted and not is_gone:
                task.over_since = None
                continue
            task.over_since = min(task.over_since or now, now)  # a clock may be set back
            if is_certain or now - task.over_since >= timedelta(seconds=_LOST_AFTER_S):
                events += self._lost_run(key, task, process)
        return events

    def _lost_run(self, key: Any, task: RunningTask, process: TaskProcess) -> Sequence[LeaseEvent]:
        """What the engine should have reported and did not."""
        if not process.is_wanted:
            self.end(key, "Airflow does not want the task any more")
            return [] if process.is_to_run_again else [EndUnreported(key)]
        cause = termination_cause_of(self._engine.cluster, task.lease)
        has_run = cause is not None and cause.is_out_of_memory  # even if Airflow has no report of it
        if process.state == "queued" and task.start is None and not has_run:
            self.end(key, "its task was queued again")  # it was adopted while it ran
            return []
        if process.state == "queued" and task.start is not None and not has_run:
            refusal = self._engine.cluster.status(task.lease.id).refusal if self._engine.cluster is not None else ""
            lost = f"its cluster refused it: {refusal}" if refusal else "the engine lost the task before it began"
            log.warning("%s did not start: %s. The task waits again.", key, lost)
            self.end(key, lost, LeaseState.EVICTED, has_started=False)
            return [StartFailed(*task.start, refusal)]
        if task.is_heartbeat_lost:
            return [RunLost(key, task.lease, "Airflow has not heard of it for too long")]
        status = self._engine.cluster.status(task.lease.id).message if self._engine.cluster is not None else None
        host = process.hostname or task.lease.worker_id
        return [RunLost(key, task.lease, status or f"its process {process.pid} on {host} is gone")]

    def _leases(self) -> list[Lease]:
        return [*(task.lease for task in self.running.values()), *(task.lease for task in self._ending.values())]

    def _is_in_reach(self, lease: Lease) -> bool:
        worker = next((worker for worker in self._store.snapshot().workers if worker.id == lease.worker_id), None)
        return worker is None or self._engine.reaches(worker)

    def _live_ids(self) -> set[str]:
        return {lease.id for lease in self._store.snapshot().leases}

    def _leased_process(self, lease: Lease, process: TaskProcess) -> LeasedProcess:
        process = process_of_lease(lease, process)
        ending = self._ending.get(lease.id)
        is_ours = ending is not None or self.find(lease.id) is not None
        state = None if ending is not None and ending.has_started else process.state
        return LeasedProcess(lease, state, process.pid, process.hostname, process.seen_at, is_ours)

    def _stop(self, task: EndingTask, process: TaskProcess, now: datetime) -> None:
        if task.stopped_at is None:
            task.stopped_at = now
            self._engine.signal(self._leased_process(task.lease, process), signal.SIGTERM)
        elif now - task.stopped_at >= timedelta(seconds=_KILL_AFTER_S):
            self._engine.signal(self._leased_process(task.lease, process), signal.SIGKILL)
        else:
            task.stopped_at = min(task.stopped_at, now)
