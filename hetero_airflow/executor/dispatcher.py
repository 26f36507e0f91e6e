"""Drives the cycle inside Airflow's scheduler: holds device tasks until they are placed, and hands them over.

Nothing here may stop the scheduler's loop. A database that does not answer costs one warning: tasks
stay held and running ones keep their devices until it answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.executors.workloads import ExecuteTask
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.contract.envelope import RequestOrTemplate, add_lease
from hetero_airflow.contract.failures import evidence_of_loss
from hetero_airflow.discovery.inventory_watch import InventoryWatch, with_missing_devices
from hetero_airflow.engines.engine import AirflowEngine, Liveness, termination_cause_of
from hetero_airflow.errors import EngineError, RequestError, StoreError
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.attained_service import AttainedService
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.context.site_links import SiteLinks
from hetero_airflow.executor.demand_metrics import emit_demand
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.executor.gangs.roster import GangRoster
from hetero_airflow.executor.leases.cluster_events import ClusterEvents
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper, Report
from hetero_airflow.executor.leases.preemption import Note, PreemptionNotices
from hetero_airflow.executor.leases.recovery import PreviousRuns, TaskRecovery
from hetero_airflow.executor.liveness import LivenessTimeout
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask, log_wait
from hetero_airflow.executor.periods import Periods
from hetero_airflow.executor.placement_checks import PlacementChecks, RenewToken
from hetero_airflow.executor.task_log import write_task_log
from hetero_airflow.executor.task_names import with_task_names
from hetero_airflow.health.transitions import leases_to_migrate
from hetero_airflow.model.hold import with_holds
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Refuse, Wait
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.policy import Policy
from hetero_airflow.runtime.task_lease import TaskLease, task_lease
from hetero_airflow.scheduling.cycle import Cycle, CycleInterrupted, CycleResult
from hetero_airflow.scheduling.pending_events import RequestEvent, with_pending_events
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, WorkerSeen

log = logging.getLogger(__name__)


class Dispatcher:
    """Everything between a device task that Airflow queued and its hand-over to the engine."""

    def __init__(
        self,
        configuration: Configuration,
        store: SqlStore,
        policy: Policy,
        engine: AirflowEngine,
        keeper: LeaseKeeper,
        *,
        tasks: TaskInstances,
        edges: DagEdges,
        report: Report,
        note: Note,
        renew_token: RenewToken,
        queued_timeout_s: float,
    ) -> None:
        self.held: dict[Any, PendingTask] = {}
        self._configuration = configuration
        self._store = store
        self._engine = engine
        self._keeper = keeper
        self._tasks = tasks
        self._report = report
        self._renew_token = renew_token
        self._inventory = InventoryWatch(
            configuration.worker_id,
            configuration.labels,
            interval_s=configuration.discovery_interval_s,
            probe_timeout_s=configuration.probe_timeout_s,
        )
        self._beliefs = PolicyContext(store, configuration.shares, edges, SiteLinks(configuration.site_links))
        self._stays = AttainedService()
        own = configuration.worker_id if engine.traits.is_local else None
        self._silence = LivenessTimeout(store, configuration.worker_timeout_s, own)
        self._host = HostHealth(configuration.worker_id)
        self._health = HealthWatch(store, self._host)
        self.probes = PlacementChecks(
            policy,
            engine,
            tasks,
            reaches=self.reaches,
            estimates=lambda: self._beliefs.estimates,
            renew_token=renew_token,
        )
        self._cluster = ClusterEvents(store, engine.cluster, note)
        self._recoveries = TaskRecovery(tasks, configuration.rules, note)
        self._preemptions = PreemptionNotices(keeper, tasks, configuration.grace_s, note)
        self._gangs = GangRoster(store, keeper, tasks, self._preemptions)
        self._cycle = Cycle(
            store,
            policy,
            self,
            configuration.lease_timeout_s,
            preemptor=self,
            policy_context=self._policy_context,
        )
        self._placed: list[tuple[PendingTask, TaskLease, datetime]] = []
        self._requests: dict[str, Any] = {}
        self._news: list[RequestEvent] = []
        """What the store records together with the next plan."""
        self._token_age = timedelta(seconds=queued_timeout_s / 4)
        self._now = datetime.min.replace(tzinfo=UTC)
        self._workers: tuple[Sequence[Worker], Mapping[str, Worker]] = ((), {})
        self._here: Worker | None = None
        """This host, as the last inventory found it."""
        self._periods = Periods(
            refresh=queued_timeout_s / 4,
            workers=configuration.worker_timeout_s / 3,
            saved=5,
            turn=30,
            learn=60,
            forgotten=10,
            wanted=30,
            prune=3600,
        )
        self._outages: dict[str, str] = {}

    def hold(self, workload: ExecuteTask, asked: RequestOrTemplate, since: datetime) -> None:
        """Keep a task until its devices are there. Touches no database: the scheduler is inside a transaction."""
        self.held[workload.key] = PendingTask(workload, asked, since)

    def drop(self, key: Any, cause: str) -> None:
        """Let go of a held task that Airflow does not want any more. Touches no database either."""
        self.probes.held.pop(key, None)
        held = self.held.pop(key, None)
        if held is not None and held.request is not None:
            self._news.append(RequestWithdrawn(held.request_id, cause))

    def decide(self, now: datetime) -> None:
        """What comes before the engine starts anything: who is gone, who comes next, what is free, who gets it."""
        with self._tolerate_outages("deciding"):
            self._now = now
            self._take_inventory(now)
            self._cluster.record_workers(now)
            self._drop_unwanted(now)
            self._keeper.free_ended(now)
            self._submit(now)
            self._place(now)
            self.probes.step(self._store.snapshot, now)

    def settle(self, now: datetime) -> None:
        """What can wait until the engine has started what was placed: records, renewals, housekeeping."""
        with self._tolerate_outages("housekeeping"):
            self._keeper.watch(now)
            self._cluster.record_wait_reasons(((task.key, task.lease) for task in self._keeper.running.values()), now)
            self._preemptions.settle(now)
            for key, text, is_done in self._gangs.watch(self.held, now):
                if is_done:
                    self.drop(key, text)
                else:
                    self._fail(key, text, now)
            self._health.step(now)
            self._move_away(now)
            self._keep_house(now)

    def close(self) -> None:
        """Stop what runs beside the scheduler, and write down what is not yet."""
        self._inventory.close()
        self._health.close()
        with self._tolerate_outages("housekeeping"):
            self._record_placed()

    @contextmanager
    def _tolerate_outages(self, step: str) -> Iterator[None]:
        """A database that does not answer, or a full disk, costs one warning, not the scheduler's loop."""
        try:
            yield
        except (StoreError, SQLAlchemyError, OSError) as error:
            text = str(error) if isinstance(error, (StoreError, OSError)) else type(error).__name__
            if text != self._outages.get(step):
                log.warning("%s: %s Held tasks stay held, running ones keep their devices.", step.capitalize(), text)
            self._outages[step] = text
        else:
            self._outages.pop(step, None)

    # What the cycle asks of an engine.

    def dispatch(self, lease: Lease) -> None:
        """Hand the task of a lease that was just granted to the engine."""
        self._hand_over(self.held[self._requests[lease.request_id]], lease)

    def is_ours(self, request_id: str) -> bool:
        """Whether the task of a request is held here, or runs under a lease that is kept here."""
        return request_id in self._requests or self._keeper.holds_request(request_id)

    def preempt(self, lease: Lease, cause: str) -> None:
        """Tell the task of a lease to save and end. It is held again when it has."""
        self._preemptions.tell(lease, with_task_names(cause, self._store.snapshot()), self._now)

    def reaches(self, worker_id: str) -> bool:
        """Whether the engine can run anything on the worker."""
        worker = self.workers().get(worker_id)
        return worker is not None and self._engine.reaches(worker)

    def open_slots(self) -> int | None:
        """How many more tasks would start at once."""
        return self._engine.open_slots()

    def liveness(self, lease: Lease) -> Liveness:
        """Whether a process of the lease runs."""
        return self._keeper.liveness(lease)

    def _policy_context(self, snapshot: Snapshot) -> Snapshot:
        """The store's snapshot with what it does not know."""
        self._note_workers(snapshot.workers)
        known = self._beliefs.told(snapshot, self._configuration.min_run_s)
        return replace(known, workers=self._recoveries.marked(known))

    def _hand_over(self, held: PendingTask, lease: Lease) -> None:
        assert held.request is not None
        worker = self._worker(lease.worker_id)
        told = task_lease(lease, worker, held.request.alternatives[lease.alternative])
        gang = self._gangs.gang_of(lease, self.workers()) if held.seat else None
        is_remote = not self._engine.traits.is_local
        told = told.model_copy(
            update={"alternative": held.number(lease.alternative), "gang": gang, "is_remote": is_remote}
        )
        workload = held.workload
        workload.ti.queue = self._configuration.queue
        workload.ti.context_carrier = add_lease(workload.ti.context_carrier, told)
        if self._engine.traits.start_timeout_s is not None or self._now - held.since > self._token_age:
            self._renew_token(workload, self._engine.traits.start_timeout_s)
        try:
            self._engine.hand_over(workload, lease, worker)
        except EngineError as error:
            self._fail(workload.key, f"It can't run where it was placed: {error}", self._now)
            raise
        self._stays.begin(lease.request_id, held.since)
        self._keeper.begin(workload.key, lease, lambda: self._hold_again(held, told))
        del self.held[workload.key]
        self._placed.append((held, told, self._now))

    def _hold_again(self, held: PendingTask, lease: TaskLease) -> None:
        """Keep a task that did not begin where it was placed. One that Airflow has queued anew had begun."""
        if held.workload.key in self.held:
            return
        not_started = (*held.not_started, lease)
        self.held[held.workload.key] = PendingTask(held.workload, held.asked, held.since, not_started=not_started)

    def _worker(self, worker_id: str) -> Worker:
        """The worker of a lease that was just granted on what the cycle saw, or read."""
        return self._workers[1].get(worker_id) or self.workers()[worker_id]

    def workers(self) -> Mapping[str, Worker]:
        """Worker id → worker, as the store has them now."""
        self._note_workers(self._store.snapshot().workers)
        return self._workers[1]

    def _note_workers(self, workers: Sequence[Worker]) -> None:
        if workers is not self._workers[0]:
            self._workers = workers, {worker.id: worker for worker in workers}

    def freed(self, key: Any, lease: Lease, end: RunEnd | None) -> None:
        """Take note of a lease that has ended: what was served, and what its failure says of the devices."""
        worker = self.workers().get(lease.worker_id)
        self._stays.end(lease, worker, end, self._now)
        if end is RunEnd.FINISHED:
            return
        failure = self._recoveries.failure_of_lease(key, lease.token, self._host.fatal_xids(lease))
        if failure is not None:
            self._health.report(failure, f"{key.dag_id}.{key.task_id}")

    def lost(self, key: Any, lease: Lease) -> bool:
        """Send a task back to be scheduled whose process is lost; whether that could be done, or has been."""
        if key in self.held:  # its supervisor has told how it ended, and Airflow has queued it anew
            return True
        holder = self._store.snapshot().holders.get(lease.request_id)
        if holder is None:  # a cycle was faster and took the lease back
            request_history = self._store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
            if request_history is None or request_history.pending.id != lease.request_id:
                return False
            holder = request_history.pending
        told = task_lease(lease, self._worker(lease.worker_id), holder.request.alternatives[lease.alternative])
        loss, xids = termination_cause_of(self._engine.cluster, lease), self._host.fatal_xids(lease)
        return self._recoveries.lost(key, lease.request_id, told, evidence_of_loss(loss, xids), self._now)

    def last_lease(self, key: Any, request_id: str) -> Lease | None:
        """The last lease of a task instance, ended or not; None if it had none within reach."""
        request_history = self._store.request_history(key.dag_id, key.run_id, key.task_id, key.map_index)
        if request_history is None or request_history.pending.id != request_id:
            return None
        near = (lease for lease in request_history.leases if self.reaches(lease.worker_id))
        return max(near, key=lambda lease: lease.token, default=None)

    def _turn_alternatives(self, now: datetime) -> None:
        """Let those that have waited for too long try their next alternative first."""
        for held in self.held.values():
            if held.request is None or held.is_left_out:
                continue
            first = held.first or held.request
            request, words = self._recoveries.turned(first, (now - held.since).total_seconds())
            if request == held.request:
                continue
            held.first, held.request = first, request
            self._news += [
                RequestWithdrawn(held.request_id, "its alternatives are tried in another order"),
                RequestSubmitted(held.pending(request, *self._stays.before(held.request_id, held.since))),
            ]
            for text in words:
                write_task_log(held.workload.log_path, text, now)

    def _move_away(self, now: datetime) -> None:
        """Take back the leases on devices that a person wants empty, so that their tasks go on elsewhere."""
        moves = leases_to_migrate(self._store.snapshot())
        told = [LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, f"moved: {bar}") for lease, bar in moves]
        for (_, bar), outcome in zip(moves, self._store.move(told, now), strict=True):
            if isinstance(outcome, Lease):
                self._preemptions.tell(outcome, f"moved: {bar}", now)

    def _take_inventory(self, now: datetime) -> None:
        inventory = self._inventory.poll() if self._engine.traits.is_local else None
        if inventory is not None:
            known = self.workers().get(inventory.worker.id)
            worker = with_missing_devices(inventory.worker, known) if known else inventory.worker
            self._store.record([WorkerSeen(worker, inventory.telemetry)], now)
            self._here = worker
            self._host.take_inventory(inventory, now)
            self._beliefs.learn()

    def _drop_unwanted(self, now: datetime) -> None:
        """Let go of held tasks that a user marked, cleared or deleted, or that have waited too long."""
        old = {key: held for key, held in self.held.items() if now - held.since >= SETTLING_TIME}
        queued = self._tasks.queued([held.request_id for held in old.values()])
        for key, held in old.items():
            if held.request_id not in queued:
                self.drop(key, "Airflow does not want it any more")
            elif held.request and held.request.wait_timeout_s is not None and not held.is_left_out:
                waited_s = (now - held.since).total_seconds()
                if waited_s > held.request.wait_timeout_s:
                    text = f"asked to wait at most {held.request.wait_timeout_s:g} s for {held.request}; {held.told}"
                    self._fail(key, f"No device in time: {text}", now)

    def _submit(self, now: datetime) -> None:
        """Gather who waits now, and who does not any more.

        Also takes up what the store knows better than we do: the answer to a commit may have been
        lost, and a scheduler that died may have submitted a task, or got a lease that it could not use.
        """
        snapshot = self._seen() if self.held else Snapshot(0)
        pending = {one.id: one for one in snapshot.pending}
        leases = {lease.request_id: lease for lease in snapshot.leases}
        for held in self._gangs.enrol(self.held.values(), snapshot):
            assert held.request is not None
            self._news.append(RequestWithdrawn(held.request_id, "its gang is tried anew"))
            if not held.is_left_out:
                before_it = self._stays.before(held.request_id, held.since)
                self._news.append(RequestSubmitted(held.pending(held.request, *before_it)))
        before = self._recoveries.returned({
            held.request_id: (key, held.workload.ti.try_number)
            for key, held in self.held.items()
            if held.request is None
        })  # fmt: skip
        for key, held in list(self.held.items()):
            id_ = held.request_id
            if (held.request is not None and id_ in pending) or self._keeper.holds_request(id_) or held.is_left_out:
                continue
            try:
                if held.request is None:
                    held.request = held.resolve(self._tasks)
                    self._adjust(held, before.get(id_), snapshot, now)
            except RequestError as error:
                self._fail(key, f"The device request can't be read: {error}", now)
                continue
            if id_ in leases and not self._gangs.is_whole(id_, snapshot):
                continue  # as long as another scheduler may take it back, with those of the others
            if id_ in leases:
                held.request = snapshot.holders[id_].request if id_ in snapshot.holders else held.request
                self._news = [event for event in self._news if event.request_id != id_]  # the store knows it
                with suppress(EngineError):  # the task has failed with it
                    self._hand_over(held, leases[id_])
            elif id_ in pending:
                held.since, held.request = pending[id_].submitted_at, pending[id_].request
            else:
                self._news.append(RequestSubmitted(held.pending(held.request, *self._stays.before(id_, held.since))))

    def _seen(self) -> Snapshot:
        """What the store shows, and will show once it is told what it does not know yet."""
        return with_pending_events(self._store.snapshot(), self._news)

    def _adjust(self, held: PendingTask, before: PreviousRuns | None, snapshot: Snapshot, now: datetime) -> None:
        """Let a task that failed before, or did not begin, ask for what it needs after that."""
        assert held.request is not None
        before = before or PreviousRuns(0, ())
        if not before.failures and not held.not_started:
            return
        near = (worker for worker in snapshot.workers if self.reaches(worker.id))
        workers = [with_holds(worker, snapshot.holds_of(worker.id)) for worker in near]
        held.request, words = self._recoveries.adjust(held.request, before, held.not_started, workers, now)
        for text in words:
            write_task_log(held.workload.log_path, text, now, "warning")

    def _place(self, now: datetime) -> None:
        self._withdraw_forgotten(now)
        self._requests = {held.request_id: key for key, held in self.held.items() if held.request}
        for decision in self._run_cycle(now).plan.decisions:
            key = self._requests.get(decision.request_id)
            if key not in self.held:
                continue
            if isinstance(decision, Refuse) and self._gangs.shrink(self.held[key]):
                continue
            if isinstance(decision, Refuse):
                self._fail(key, f"No known worker can ever run this: {decision.reason}. {decision.nearest}", now)
            elif isinstance(decision, Wait):
                log_wait(self.held[key], decision, self._store.snapshot(), now)

    def _run_cycle(self, now: datetime) -> CycleResult:
        """One cycle. Events that the store has recorded are no longer pending, also if a later step fails."""
        recorded = 0
        try:
            result = self._cycle.run(now, self._news)
            recorded = result.recorded
        except CycleInterrupted as error:
            recorded = error.recorded
            raise
        finally:
            del self._news[:recorded]
        return result

    def _withdraw_forgotten(self, now: datetime) -> None:
        """Take requests out of the queue whose tasks Airflow has given up while no scheduler looked."""
        if not self._periods.is_due("forgotten", now):  # of 10,000 that others hold, each look asks the database
            return
        known = {held.request_id for held in self.held.values()}
        forgotten = [pending.id for pending in self._seen().pending if pending.id not in known]
        if not forgotten:
            return
        queued = self._tasks.queued(forgotten)
        gone = [RequestWithdrawn(id_, "Airflow does not want it any more") for id_ in forgotten if id_ not in queued]
        self._store.record(gone, now)

    def _record_placed(self) -> None:
        """Write about what was placed a little while ago, so as not to compete with its start."""
        placed, self._placed = self._placed, []
        for held, lease, at in placed:
            waited_s = (at - held.since).total_seconds()
            write_task_log(held.workload.log_path, f"Placed after {waited_s:.1f} s on {lease}", at)
        self._tasks.record_leases((held.workload, lease) for held, lease, _ in placed)

    def _keep_house(self, now: datetime) -> None:
        if self._periods.is_due("refresh", now):
            ids = [held.request_id for held in (*self.held.values(), *self.probes.held.values())]
            ids += [task.lease.request_id for task in self._keeper.running.values()]
            self._tasks.refresh_queued(ids, now)
        if self._periods.is_due("workers", now):
            self._store.record([WorkerSeen(self._here)] if self._here else [], now)
        self._store.record(self._silence.find(now), now)
        if self._store.snapshot().pending and self._periods.is_due("saved", now):
            self._store.record(self._preemptions.saved(), now)
        if self._periods.is_due("turn", now):
            self._turn_alternatives(now)
        if self._periods.is_due("learn", now):
            self._beliefs.refresh()
        if self._periods.is_due("wanted", now):
            emit_demand(self._store.snapshot())
        if self._periods.is_due("prune", now):
            self._store.prune(now - timedelta(days=self._configuration.history_days))
        if self._placed and now - self._placed[0][2] >= SETTLING_TIME:
            self._record_placed()

    def _fail(self, key: Any, text: str, now: datetime) -> None:
        held = self.held[key]
        log.error("%s: %s", key, text)
        write_task_log(held.workload.log_path, text, now, "error")
        self.drop(key, text)
        self._report(key, "failed", text)
