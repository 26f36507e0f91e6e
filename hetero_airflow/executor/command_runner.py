"""Carries out what the table of runs commands: the only place that starts, stops, frees and reports runs."""

import logging
import math
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from hetero_airflow.checkpoints.place import checkpoint_path
from hetero_airflow.clock import Clock
from hetero_airflow.contract.envelope import add_lease
from hetero_airflow.contract.notice import Notice
from hetero_airflow.contract.state_keys import PREEMPT, LeaseNotice
from hetero_airflow.contract.task_lease import TaskLease, task_lease
from hetero_airflow.contract.task_secret import task_secret, wrapped
from hetero_airflow.engines.circuit_breaker import make_call
from hetero_airflow.engines.engine import AirflowEngine, Liveness
from hetero_airflow.errors import EngineError, StoreError, shorten
from hetero_airflow.executor import commands, events
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.state_store import StateCalls, write_state
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.gangs.roster import gang_of
from hetero_airflow.executor.leases.recovery import TaskRecovery, evidence_of_loss
from hetero_airflow.executor.leases.spans import LeaseSpans
from hetero_airflow.executor.observer import Observer, RunEvent
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask
from hetero_airflow.executor.run import Phase, Run
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.task_log import SchedulerCallbacks, write_task_log
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Preempt
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.model.worker import Worker
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.scheduling.pending_events import RequestEvent
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, StartClaimed

log = logging.getLogger(__name__)


@dataclass
class CommandRunner:
    """Also what the cycle asks of an engine and of a preemptor.

    :param airflow_queue: Airflow's queue of device tasks, which is mapped to the coordinator
    :param grace: the time that a preempted task has to save and end
    :param queued_timeout_s: how long Airflow's token of a task is valid; a task that waits longer gets a new one
    :param signer: signs what tasks are told about their leases
    :param scheduler: the id of this scheduler, as in `Observer`
    """

    runs: Runs
    observer: Observer
    store: SqlStore
    engine: AirflowEngine
    tasks: TaskInstances
    recovery: TaskRecovery
    health: HealthWatch
    api: ExecutionApiWatch
    callbacks: SchedulerCallbacks
    states: StateCalls
    spans: LeaseSpans
    clock: Clock
    signer: GrantSigner
    scheduler: str
    airflow_queue: str
    grace: timedelta
    queued_timeout_s: float
    outbox: list[RequestEvent] = field(default_factory=list)
    """The events about requests that the store gets with the next plan."""
    _placed: list[tuple[PendingTask, TaskLease, datetime]] = field(default_factory=list)
    """The placed tasks whose logs do not say so yet."""

    def apply(self, found: Iterable[RunEvent], now: datetime) -> None:
        """Let the table handle what was found, and carry out its commands."""
        frees: list[tuple[Run, LeaseMove]] = []
        stopped: list[Run] = []
        for run, event in found:
            for command in self.runs.handle(run, event, now):
                if isinstance(command, commands.Free):
                    frees.append((run, command.move))
                else:
                    if isinstance(command, commands.Signal) and command.number == signal.SIGTERM:
                        stopped.append(run)
                    self._carry_out(run, command, now)
        _warn_of_processes(stopped)
        self._free(frees, now)

    def _carry_out(self, run: Run, command: commands.Command, now: datetime) -> None:  # noqa: C901  one case a command
        match command:
            case commands.Submit():
                self.outbox.append(RequestSubmitted(run.waiting_task.as_pending()))
            case commands.Withdraw(cause):
                self.outbox.append(RequestWithdrawn(run.request_id, cause))
            case commands.Start(lease, True):
                self._start_found(run, lease, now)
            case commands.Start(lease):
                self._start(run, lease)
            case commands.Send():
                self._send(run, now)
            case commands.Forget():
                self.engine.forget(run.key)
            case commands.Follow():
                self._follow(run)
            case commands.Report(state, info, is_noted):
                self.callbacks.report(run.key, state, info, is_noted)
            case commands.Log(text, level):
                self._log(run, text, level, now)
            case commands.Note(text):
                self.callbacks.note(run.key, text)
            case commands.Warn(text):
                log.warning(text)
            case commands.Tell():
                self._tell(run)
            case commands.Reschedule():
                self._reschedule(run, now)
            case commands.Signal(number, row):
                self.engine.signal(self.observer.process(run.held_lease, row), number)

    # -- the cycle's engine and preemptor ------------------------------------------------------------------------------

    def dispatch(self, lease: Lease) -> None:
        """Hand over the task of a lease that was just granted.

        :raises EngineError: the engine can't run it there; the task has failed
        """
        run = self.runs.of_request(lease.request_id)
        if run is None:
            raise EngineError(f"to start request {lease.request_id}", found="no task", remedy="It waits again")
        self.apply([(run, events.Granted(lease))], self.clock.now())

    def is_ours(self, request_id: str) -> bool:
        """Whether the task of a request waits here, or runs under a lease that is kept here."""
        run = self.runs.of_request(request_id)
        return (run is not None and run.waiting_task.request is not None) or self.runs.has_lease_of(request_id)

    def reaches(self, worker_id: str) -> bool:
        """Whether the engine can run anything on the worker."""
        worker = self.store.workers().get(worker_id)
        return worker is not None and self.engine.reaches(worker)

    def open_slots(self) -> int | None:
        """How many more tasks would start at once."""
        return self.engine.open_slots()

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""
        return self.observer.liveness(lease)

    def preempt(self, lease: Lease, order: Preempt) -> None:
        """Tell the task of a lease to save and end, and say in the log of the one that gains why.

        The first one waits again when it has ended.
        """
        snapshot, now = self.store.snapshot(), self.clock.now()
        names, holder = TaskNames.of(snapshot), snapshot.holders.get(lease.request_id)
        self.notify(lease, names.put_into(order.cause, {holder.dag_id} if holder else set()), now)
        gaining = self.runs.of_request(order.beneficiary) if order.beneficiary else None
        if gaining is not None and gaining.task is not None:
            cause = order.cause.replace("this task", order.request_id).replace(gaining.request_id, "this task")
            text = f"Devices of {order.request_id} are taken back for this task. Its notice says: {cause}"
            text = text.replace(". this task", ". This task")
            self._log(gaining, names.put_into(text, {gaining.task.workload.ti.dag_id}), "info", now)

    def notify(self, lease: Lease, cause: str, now: datetime, grace: timedelta | None = None) -> None:
        """Tell the task of a lease once to save and end, unless it is over already.

        :param grace: a grace time other than the configured one
        """
        run = self.runs.of_lease(lease.id)
        if run is not None:
            notice = Notice(cause=cause, by=now + (self.grace if grace is None else grace))
            self.apply([(run, events.Preempted(notice))], now)

    # -- starts --------------------------------------------------------------------------------------------------------

    def _start_found(self, run: Run, lease: Lease, now: datetime) -> None:
        """Start a task under the lease that the store has for it, once it can start. The store lets one scheduler."""
        if self.api.outage is not None or self.engine.open_slots() == 0:
            return
        holder = self.store.snapshot().holders.get(run.request_id)
        task = run.waiting_task
        task.request = holder.request if holder else task.request
        if task.request is None:
            return
        if lease.starter is None:
            self.store.record([StartClaimed(lease.id, lease.token, self.scheduler)], now)
            lease = next((live for live in self.store.snapshot().leases if live.id == lease.id), lease)
        if lease.starter == self.scheduler:
            self.outbox[:] = [event for event in self.outbox if event.request_id != run.request_id]  # it is recorded
            with suppress(EngineError):  # the task has failed with it
                self._start(run, lease)

    def _start(self, run: Run, lease: Lease) -> None:
        """Give a task its lease and hand it over to the engine.

        :raises EngineError: the engine can't run it there; the task has failed
        """
        task, traits = run.waiting_task, self.engine.traits
        worker, now = self.store.worker(lease.worker_id), self.clock.now()
        workload = task.workload
        if traits.start_timeout_s is not None or task.waited_s(now) > self.queued_timeout_s / 4:
            self.callbacks.renew_token(workload, traits.start_timeout_s)
        carried = self._task_lease(task, lease, worker)
        workload.ti.queue = self.airflow_queue
        workload.ti.context_carrier = add_lease(workload.ti.context_carrier, carried)
        try:
            self.engine.hand_over(workload, lease, worker)
        except EngineError as error:
            self.apply([(run, events.Failed(f"It can't run where it was placed: {error}"))], now)
            raise
        self._placed.append((task, carried, now))
        self.apply([(run, events.HandedOver(lease, carried))], now)

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
                "gang": gang_of(lease, self.store.snapshot(), self.store.workers()) if task.member else None,
                "is_remote": not self.engine.traits.is_local,
                "waited_s": round(task.waited_s(self.clock.now()), 1),
                "grant": grant.pack(),
                "secret": wrapped(task_secret(self.signer, ti.dag_id, ti.task_id), task.workload.token),
            }
        )

    def _send(self, run: Run, now: datetime) -> None:
        assert run.workload is not None
        self.callbacks.renew_token(run.workload, None)
        self.engine.hand_over_unplaced(run.workload)
        self.apply([(run, events.Sent())], now)

    def _follow(self, run: Run) -> None:
        if self.engine.cluster is not None:
            self.engine.cluster.follow(run.key, run.held_lease)

    def record_placed(self, now: datetime | None = None) -> None:
        """Write into the tasks' state stores and traces where they were placed.

        :param now: wait until the oldest placement is `SETTLING_TIME` old, so as not to compete with its start
        """
        if now is not None and not (self._placed and now - self._placed[0][2] >= SETTLING_TIME):
            return
        placed, self._placed = self._placed, []
        for task, lease, at in placed:
            self.spans.end_wait(task.workload.ti, lease, task.since, at)
        self.tasks.record_leases(((task.workload, lease) for task, lease, _ in placed), self.states)

    # -- stops and ends ------------------------------------------------------------------------------------------------

    def _tell(self, run: Run) -> None:
        """At once, where the engine can, and through the task state store to the coordinator, which tells the task.

        A task that saves and ends in time reschedules itself. The coordinator stops the process of any other task at
        the end of the grace time. `Reschedule` is for one that it did not stop.
        """
        notice = run.notice
        assert notice is not None
        self.engine.tell(run.held_lease.id, notice)
        text = LeaseNotice(lease_id=run.held_lease.id, notice=notice).model_dump_json()
        loss = f"{run.key} could not be told to save. It is stopped at {notice.by}"
        self.states.keep((run.key, PREEMPT), partial(write_state, run.key, PREEMPT, text), loss)

    def _reschedule(self, run: Run, now: datetime) -> None:
        if run.end is not None:
            cause = run.end.cause
        else:
            assert run.notice is not None
            cause = f"{run.notice.cause}. It had not ended in its grace time"
        if self.tasks.reschedule(run.request_id, now, now):
            log.warning("%s is stopped, and goes on later with the same try: %s.", run.key, cause)
            self.callbacks.note(run.key, f"stopped: {cause}.")

    def _log(self, run: Run, text: str, level: str, now: datetime) -> None:
        if level == "error":
            log.error("%s: %s", run.key, text)
        if run.workload is not None:
            write_task_log(run.workload.log_path, text, now, level)

    def decide_lost(self, now: datetime) -> None:
        """Ask the recovery rules what becomes of lost runs; again in the next round if it is not known yet."""
        lost = [run for run in self.runs.leased.values() if run.phase is Phase.LOST]
        for run in [*lost, *self.runs.given_up.values()]:
            is_sent_back = self._send_back(run, now)
            if is_sent_back is not None:
                self.apply([(run, events.RecoveryDecided(is_sent_back))], now)

    def _send_back(self, run: Run, now: datetime) -> bool | None:
        """Requeue a task whose process is lost. Returns whether that was done, now or before; None: not known yet."""
        key, lease = run.key, run.lease
        groups = (self.runs.held, self.runs.sent) if lease is None else (self.runs.queued,)
        if any(key in group for group in groups):  # its supervisor has reported its end, and Airflow queued it again
            return True
        if lease is None:
            is_queued = run.end is not None and not run.end.has_started
            gone = Evidence(is_gone=True)
            return self.recovery.send_back(key, run.request_id, None, gone, now, even_queued=is_queued)
        request = self._request_of(key, lease)
        if request is None:
            return False
        carried = task_lease(lease, self.store.worker(lease.worker_id), request.request.alternatives[lease.alternative])
        cluster = self.engine.cluster
        cause = None if cluster is None else cluster.status(lease.id).termination_cause
        evidence = evidence_of_loss(cause, self.health.host.fatal_xids(lease))
        return self.recovery.send_back(key, lease.request_id, carried, evidence, now)

    def _request_of(self, key: Any, lease: Lease) -> PendingRequest | None:
        """The request of a lease, also if a cycle was faster and took the lease back."""
        holder = self.store.snapshot().holders.get(lease.request_id)
        if holder is not None:
            return holder
        history = self.store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        return history.pending if history is not None and history.pending.id == lease.request_id else None

    def _free(self, frees: Sequence[tuple[Run, LeaseMove]], now: datetime) -> None:
        """End leases. A lease whose run may have failed because of its device ends when that is known."""
        explained = [(run, move, self._explain(run, move.end)) for run, move in frees]
        over = [end for end in explained if end[2].done()]
        if not over:
            return
        for (run, move, answer), outcome in zip(over, self.store.move([move for _, move, _ in over], now), strict=True):
            self.apply([(run, events.Freed())], now)
            if isinstance(outcome, StoreError):
                log.info("A lease had already ended: %s", outcome)
            else:
                self._learn_from(run, move.end, answer, now)

    def _explain(self, run: Run, end: RunEnd | None) -> Future[Failure | None]:
        """The failure that a run recorded; None if it finished, or recorded none."""
        lease = run.held_lease
        if end is RunEnd.FINISHED:
            return make_call(lambda: None)
        return self.recovery.failure_of_lease(run.key, lease.token, self.health.host.fatal_xids(lease))

    def _learn_from(self, run: Run, end: RunEnd | None, answer: Future[Failure | None], now: datetime) -> None:
        """Note what the failure of a run says about its devices."""
        key, lease = run.key, run.held_lease
        if (error := answer.exception()) is not None:
            log.warning("It is unknown whether a device caused the failure of %s: %s", key, error)
        elif (failure := answer.result()) is not None:
            self.health.report(failure, f"{key.dag_id}.{key.task_id}")
        self.spans.end_lease(key, lease, end, now)


def _warn_of_processes(runs: Sequence[Run]) -> None:
    """Log that processes of ended runs are left: one line for all, since an outage of a cluster may have many."""
    if runs:
        text = "The tasks of %d leases are over, but their processes still run. Devices stay leased until they end: %s"
        ends = (f"{run.held_lease.id} ({run.end.cause if run.end is not None else 'unknown'})" for run in runs)
        log.warning(text, len(runs), shorten(", ".join(ends), 500))
