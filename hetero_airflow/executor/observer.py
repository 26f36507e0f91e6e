"""Finds out what has happened to the runs: from Airflow's rows, the store and the engine, in batches. Changes none."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.clock import Periods
from hetero_airflow.contract.notice import Notice
from hetero_airflow.engines.engine import AirflowEngine, LeasedProcess, LeaseStatus, Liveness
from hetero_airflow.executor import events
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances, TaskProcess
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.leases.lease_use import LeaseUse, lease_use, process_of_lease
from hetero_airflow.executor.leases.recovery import TaskRecovery
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.run import LEASED, Phase, Run
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.recovery.rules import Action, Rule

_WATCH_EVERY_S = 5.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_AFTER_REFUSAL = Rule(Action.REQUEUE, times=None, delay_s=10.0)
"""The pauses after refusals by a quota: 10 s, 20 s and so on up to 10 minutes."""

_FORCE_AFTER = timedelta(seconds=10)
"""The coordinator's time to stop a preempted task after the grace time. Then Airflow's row is changed here."""

_RETRY_TIME = timedelta(minutes=1)
"""A supervisor that could not reach the API server may ask again for this long after the server is back."""

_DROPPED = "The task waits no longer, because its state in Airflow has changed. Its note and the audit log can say why."

RunEvent = tuple[Run, events.Event]
EngineReport = tuple[Any, Any]
"""The state of a task that an engine reports, and what it says beside."""


@dataclass
class Observer:
    """What each method returns is for `CommandRunner.apply`.

    :param grace: the time that a preempted task has to save and end
    :param scheduler: the id of this scheduler, which names it in the leases whose tasks it starts
    """

    runs: Runs
    store: CachedSnapshotStore
    engine: AirflowEngine
    tasks: TaskInstances
    api: ExecutionApiWatch
    recovery: TaskRecovery
    resolver: RequestResolver
    scheduler: str
    lease_timeout: timedelta
    grace: timedelta
    _liveness: dict[str, tuple[datetime, Liveness]] = field(default_factory=dict)
    _now: datetime = _LONG_AGO

    def __post_init__(self) -> None:
        self._periods = Periods(renew=self.lease_timeout.total_seconds() / 3, watch=_WATCH_EVERY_S)

    # -- runs that the engine has --------------------------------------------------------------------------------------

    def denied(self) -> dict[Any, EngineReport]:
        """Key → the reported end that did not count, since Airflow's row denied it; it may be true by now."""
        ends = ((run.key, run.denied_end) for run in self.runs.leased.values())
        return {key: (end.state, end.info) for key, end in ends if end is not None}

    def reported(self, reports: Mapping[Any, EngineReport]) -> list[RunEvent]:
        """What the engine reports of runs that are known here."""
        runs = {key: run for key in reports if (run := self.runs.reported(key)) is not None}
        sent_at = {key: run.held_lease.granted_at if run.phase in LEASED else run.sent_at for key, run in runs.items()}
        failed_since = {key: at is not None and self.api.has_failed_since(at) for key, at in sent_at.items()}
        failed = {key for key in runs if reports[key][0] == TaskInstanceState.FAILED}
        doubtful = [run for key, run in runs.items() if run.phase in LEASED or failed_since[key] or key in failed]
        rows = self._rows_if_known(doubtful)
        rows_known = rows or {}
        liveness = self._liveness_of_runs(
            [run for run in doubtful if self._may_go_on(run, reports[run.key][0], rows_known)], rows_known
        )
        return [
            (run, self._ended(run, reports[key], rows, liveness, has_api_failed=failed_since[key]))
            for key, run in runs.items()
        ]

    def _may_go_on(self, run: Run, state: Any, rows: Mapping[str, TaskProcess]) -> bool:
        """Whether a process of the run may be there, although the engine reports an end."""
        row, has_failed = rows.get(run.request_id), state == TaskInstanceState.FAILED
        is_running = run.phase in LEASED and row is not None and row.state == TaskInstanceState.RUNNING
        return is_running and (self.engine.cluster is not None if has_failed else run.key in self.runs.unreported)

    def _ended(
        self,
        run: Run,
        report: EngineReport,
        rows: Mapping[str, TaskProcess] | None,
        liveness: Mapping[str, Liveness],
        *,
        has_api_failed: bool,
    ) -> events.EngineEnded:
        earlier = run.task.failed_starts if run.task is not None else 0
        return events.EngineEnded(
            *report,
            row=None if rows is None else rows.get(run.request_id, TaskProcess()),
            liveness=liveness.get(run.lease.id, Liveness.UNKNOWN) if run.lease is not None else Liveness.UNKNOWN,
            cause=self._status(run).termination_cause,
            names_runs=self.engine.traits.names_runs,
            has_cluster=self.engine.cluster is not None,
            is_remembered=run.key in self.runs.unreported,
            is_queued_again=run.key in self.runs.queued or run.key in self.runs.arrived,
            has_api_failed=has_api_failed,
            retry_after_s=self.recovery.delay_after_failed_starts(earlier),
        )

    def watched(self, now: datetime) -> list[RunEvent]:
        """What is known about the processes of all leased runs, if it is time to look."""
        leased = list(self.runs.leased.values())
        if self.api.outage is not None:
            return [(run, events.ApiAway()) for run in leased]
        if not leased or not self._periods.is_due("watch", now):
            return []
        rows = self._rows(leased)
        liveness = self._liveness_of_runs(leased, rows)
        snapshot = self.store.snapshot()
        lost_workers = {worker.id for worker in snapshot.workers if worker.state is WorkerState.LOST}
        live = {lease.id for lease in snapshot.leases}  # `renewed` judges the others: a row may show a newer run
        found: list[RunEvent] = []
        for run in [run for run in leased if run.held_lease.id in live]:
            lease, status = run.held_lease, self._status(run)
            is_worker_lost = lease.worker_id in lost_workers
            pause_s = _AFTER_REFUSAL.delay_after_s(run.task.failed_starts if run.task is not None else 0) or 0.0
            seen = rows.get(run.request_id, TaskProcess()), liveness[lease.id], is_worker_lost
            event = events.Watched(*seen, status.termination_cause, status.refusal, pause_s, status.message)
            found.append((run, event))
        return found

    def renewed(self, now: datetime) -> list[RunEvent]:
        """Renew all leases, if it is time. The runs whose leases can't be renewed have lost them.

        The lease of an ended run on a host out of reach is left to expire: a scheduler of that host can tell whether
        its processes are gone.
        """
        self._now = now
        if not self._periods.is_due("renew", now):
            return []
        ending = (run.held_lease for run in self.runs.ending.values())
        leases = [*(run.held_lease for run in self.runs.leased.values()), *filter(self._is_in_reach, ending)]
        if not leases:
            return []
        ended = self.store.renew([(lease.id, lease.token) for lease in leases], now + self.lease_timeout)
        lost = [run for run in self.runs.leased.values() if run.held_lease.id in ended]
        rows = self._rows(lost)
        found: list[RunEvent] = []
        for run in lost:
            earlier = self._earlier_leases(run.key, run.held_lease)
            found.append((run, events.LeaseGone(rows.get(run.request_id, TaskProcess()), earlier)))
        return found

    def _earlier_leases(self, key: Any, lease: Lease) -> tuple[Lease, ...] | None:
        history = self.store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        if history is None or history.pending.id != lease.request_id:
            return None
        if any(past_lease.token > lease.token for past_lease in history.leases):
            return None
        return tuple(past_lease for past_lease in history.leases if past_lease.token < lease.token)

    def last_lease(self, key: Any, request_id: str) -> Lease | None:
        """The last lease of a task instance on a known worker, ended or not; None if this engine can have run none.

        A host whose scheduler restarts under a new name is another worker. So any worker may be this host.
        """
        history = self.store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        if history is None or history.pending.id != request_id:
            return None
        workers, is_local = self.store.workers(), self.engine.traits.is_local
        leases = (
            lease
            for lease in history.leases
            if lease.worker_id in workers and (is_local or self.engine.reaches(workers[lease.worker_id]))
        )
        return max(leases, key=lambda lease: lease.token, default=None)

    def stopping(self, now: datetime) -> list[RunEvent]:
        """The runs whose grace time is over, and those that a dead scheduler preempted."""
        found: list[RunEvent] = []
        for run in self.runs.leased.values():
            if run.phase is Phase.STOPPING:
                is_over = run.notice is not None and now >= run.notice.by + _FORCE_AFTER
                found += [(run, events.GraceOver())] if is_over else []
            elif run.phase is not Phase.LOST and run.held_lease.state is LeaseState.PREEMPTED:
                cause = "taken back before this scheduler took it over"
                found.append((run, events.Preempted(Notice(cause=cause, by=now + self.grace))))
        return found

    def looked(self, now: datetime) -> list[RunEvent]:
        """What is left of the runs that are over for Airflow."""
        self._now = now
        ending = list(self.runs.ending.values())
        if not ending:
            return []
        live = self._live_ids()
        held = [run for run in ending if run.held_lease.id in live]
        rows = self._rows(held)
        liveness = self._liveness_of_runs(held, rows)
        if Liveness.ALIVE in liveness.values():
            # it gets a signal. If another scheduler has ended its lease, the row may name the process of a newer run
            self.store.invalidate()
            live = self._live_ids()
        found: list[RunEvent] = []
        for run in ending:
            id_, row = run.held_lease.id, rows.get(run.request_id, TaskProcess())
            found.append((run, events.Looked(id_ in live, row, liveness.get(id_, Liveness.UNKNOWN))))
        return found

    # -- runs that wait ------------------------------------------------------------------------------------------------

    def waiting(self, snapshot: Snapshot, now: datetime) -> list[RunEvent]:
        """What Airflow and the store know about the tasks that wait for devices.

        The store may know better: the answer to a commit may have been lost, and a scheduler that died may have
        submitted a task, or got a lease that it could not use.

        :param snapshot: the store, with the events that it does not have yet
        """
        runs = list(self.runs.queued.values())
        kept = self.runs.request_ids()
        waiting = {run.request_id for run in runs} - kept
        uses = self.uses_of([lease for lease in snapshot.leases if lease.request_id in waiting])
        found, new = compare(runs, snapshot, queued=self._queued(runs, now), kept=kept, uses=uses, now=now)
        return [*found, *self.resolver.resolved(new, snapshot, now)]

    def unwanted_checks(self, now: datetime) -> list[RunEvent]:
        """The placement checks that Airflow does not want any more."""
        runs = list(self.runs.checking.values())
        queued = self._queued(runs, now)
        return [(run, events.Dropped()) for run in runs if run.request_id not in queued]

    def held(self) -> list[RunEvent]:
        """The tasks that waited for the API server, which answers now."""
        runs = list(self.runs.held.values())
        queued = self.tasks.queued([run.request_id for run in runs])
        return [(run, events.Answered() if run.request_id in queued else events.Dropped()) for run in runs]

    def delayed(self, now: datetime) -> list[Run]:
        """The tasks without a lease whose supervisors may wait for the API server since an outage."""
        if self.api.outage is None and not self.api.has_failed_since(now - _RETRY_TIME):
            return []
        sent = self.runs.sent.values()
        return [run for run in sent if run.sent_at is not None and self.api.has_failed_since(run.sent_at)]

    def _queued(self, runs: Sequence[Run], now: datetime) -> set[str]:
        """The ids of the tasks that are still QUEUED in Airflow, which is asked after `SETTLING_TIME`."""
        settled = {run.request_id for run in runs if now - run.waiting_task.since >= SETTLING_TIME}
        return {run.request_id for run in runs} - settled | self.tasks.queued(settled)

    def uses_of(self, leases: Sequence[Lease]) -> dict[str, LeaseUse]:
        """Lease id → its use, for leases of waiting tasks that are not kept here; out of reach, only `BEGUN`."""
        if not leases:
            return {}
        rows = self.tasks.processes([lease.request_id for lease in leases])
        known = [(lease, rows.get(lease.request_id, TaskProcess())) for lease in leases]
        liveness = self.engine.liveness_of([self.process(lease, row) for lease, row in known])
        uses = {lease.id: lease_use(lease, row, liveness[lease.id], self.scheduler) for lease, row in known}
        far = {lease.id for lease in leases if not self._is_in_reach(lease)}
        return {id_: use for id_, use in uses.items() if id_ not in far or use is LeaseUse.BEGUN}

    # -- processes -----------------------------------------------------------------------------------------------------

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs, as of a few seconds ago at most: each look scans all processes."""
        latest = self._liveness.get(lease.id)
        if latest is None or not timedelta(0) <= self._now - latest[0] < timedelta(seconds=_WATCH_EVERY_S):
            live = self._live_ids()
            self._liveness = {id_: earlier for id_, earlier in self._liveness.items() if id_ in live}
            row = self.tasks.processes([lease.request_id]).get(lease.request_id, TaskProcess())
            liveness = self.engine.liveness_of([self.process(lease, row)])[lease.id]
            latest = self._liveness[lease.id] = (self._now, liveness)
        return latest[1]

    def process(self, lease: Lease, row: TaskProcess) -> LeasedProcess:
        """What is known about the process of a lease."""
        row, run = process_of_lease(lease, row), self.runs.of_lease(lease.id)
        has_ended = run is not None and run.phase is Phase.ENDING and run.end is not None and run.end.has_started
        state = None if has_ended else row.state
        return LeasedProcess(lease, state, row.pid, row.hostname, row.seen_at, is_ours=run is not None)

    def _liveness_of_runs(self, runs: Sequence[Run], rows: Mapping[str, TaskProcess]) -> Mapping[str, Liveness]:
        processes = [self.process(run.held_lease, rows.get(run.request_id, TaskProcess())) for run in runs]
        return self.engine.liveness_of(processes) if processes else {}

    def _rows(self, runs: Collection[Run]) -> Mapping[str, TaskProcess]:
        return self.tasks.processes([run.request_id for run in runs])

    def _live_ids(self) -> set[str]:
        return {lease.id for lease in self.store.snapshot().leases}

    def _rows_if_known(self, runs: Collection[Run]) -> Mapping[str, TaskProcess] | None:
        try:
            return self._rows(runs)
        except SQLAlchemyError:
            return None

    def _status(self, run: Run) -> LeaseStatus:
        if self.engine.cluster is None or run.lease is None:
            return LeaseStatus()
        return self.engine.cluster.status(run.lease.id)

    def _is_in_reach(self, lease: Lease) -> bool:
        worker = self.store.workers().get(lease.worker_id)
        return worker is None or self.engine.reaches(worker)


def compare(
    runs: Iterable[Run],
    snapshot: Snapshot,
    *,
    queued: Collection[str],
    kept: Collection[str],
    uses: Mapping[str, LeaseUse],
    now: datetime,
) -> tuple[list[RunEvent], list[Run]]:
    """What was found out about runs that wait for devices, and those that the store does not know. Pure.

    :param queued: ids of the tasks that are still QUEUED in Airflow
    :param kept: ids of the requests whose leases are kept here: such a task waits until the lease is free
    :param uses: lease id → its use, for the leases of other waiting tasks; a task waits if its lease is not in it
    """
    pending = {request.id: request for request in snapshot.pending}
    leases = {lease.request_id: lease for lease in snapshot.leases}
    found: list[RunEvent] = []
    new: list[Run] = []
    for run in runs:
        id_, task, lease = run.request_id, run.waiting_task, leases.get(run.request_id)
        use = None if lease is None else uses.get(lease.id)
        if lease is not None and use is LeaseUse.BEGUN:
            found.append((run, events.FoundRunning(lease)))
        elif id_ not in queued:
            found.append((run, events.Dropped(_DROPPED)))
        elif (text := _timeout_text(task, now)) is not None:
            found.append((run, events.Failed(text)))
        elif id_ in kept or task.is_delayed(now) or (task.request is not None and id_ in pending):
            continue
        elif lease is not None:
            found += [(run, event) for event in _lease_found(lease, use, snapshot)]
        elif id_ in pending:
            found.append((run, events.RequestFound(pending[id_])))
        else:
            new.append(run)
    return found, new


def _lease_found(lease: Lease, use: LeaseUse | None, snapshot: Snapshot) -> list[events.Event]:
    if use is LeaseUse.LEFT_OVER:
        return [events.FoundLeftOver(lease)]
    # without its whole gang, another scheduler may take the lease back
    is_ready = use is LeaseUse.UNUSED and _has_whole_gang(lease.request_id, snapshot)
    return [events.Granted(lease, is_found=True)] if is_ready else []


def _timeout_text(task: PendingTask, now: datetime) -> str | None:
    limit_s = task.request.wait_timeout_s if task.request is not None and not task.is_excluded else None
    if limit_s is None or task.waited_s(now) <= max(limit_s, SETTLING_TIME.total_seconds()):
        return None
    return f"No device in time: asked to wait at most {limit_s:g} s for {task.request}; {task.logged_wait}"


def _has_whole_gang(request_id: str, snapshot: Snapshot) -> bool:
    """Whether all members of a request's gang hold a lease; True without a gang."""
    request = snapshot.holders.get(request_id)
    if request is None or not request.gang:
        return True
    return sum(holder.gang == request.gang for holder in snapshot.holders.values()) >= request.gang_size
