"""The steps of a scheduler's heartbeat: find out what happened, handle it, decide, and keep records.

Nothing here may stop the scheduler's loop. If the database does not answer, one warning is logged: waiting tasks
wait on, and running ones keep their devices, until it answers again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.clock import Periods
from hetero_airflow.discovery.inventory_watch import with_missing_devices
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.executor import events
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.cached_store import CachedSnapshotStore, ToleratedOutages
from hetero_airflow.executor.command_runner import CommandRunner
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.device_health.host_inventory import HostInventory
from hetero_airflow.executor.gangs.roster import GangRoster
from hetero_airflow.executor.housekeeping import Housekeeping
from hetero_airflow.executor.leases.cluster_events import ClusterEvents
from hetero_airflow.executor.observer import EngineReport, Observer
from hetero_airflow.executor.placement_checks import PlacementChecks
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.run import LEASED, Run
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.wait_logs import WaitLogs
from hetero_airflow.health.transitions import leases_to_migrate
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Decision, Refuse, Wait
from hetero_airflow.scheduling.cycle import Cycle, CycleInterrupted
from hetero_airflow.scheduling.hardware_wait import refusal_text
from hetero_airflow.scheduling.pending_events import with_pending_events
from hetero_airflow.store.store import LeaseMove, RequestWithdrawn, WorkerSeen


@dataclass
class Dispatcher:
    """Takes device tasks from the moment when Airflow has queued them until their devices are free again."""

    runs: Runs
    observer: Observer
    commands: CommandRunner
    cycle: Cycle
    resolver: RequestResolver
    checks: PlacementChecks
    gangs: GangRoster
    store: CachedSnapshotStore
    engine: AirflowEngine
    tasks: TaskInstances
    api: ExecutionApiWatch
    context: PolicyContext
    cluster: ClusterEvents
    inventory: HostInventory
    health: HealthWatch
    housekeeping: Housekeeping
    wait_logs: WaitLogs
    hardware_wait: timedelta
    """``[hetero] wait_for_hardware``"""
    _decided_at: datetime | None = None
    """When the last cycle ended that had no error."""
    _periods: Periods = field(default_factory=lambda: Periods(alternatives=30, forgotten=10, transitions=5))
    _tolerate_outages: ToleratedOutages = field(default_factory=ToleratedOutages)

    def place_tasks(self, now: datetime) -> None:
        """Free the devices of ended tasks, decide which tasks get free devices, and hand those to the engine."""
        with self._tolerate_outages("deciding"):
            self.resolver.begin_round()
            self._take_inventory(now)
            self.cluster.record_workers(now)
            self._place(now)
            if self.api.outage is None:
                self._answer_checks(now)
                self.commands.apply(self.observer.held(), now)

    def hand_on_devices(self, now: datetime) -> None:
        """What `place_tasks` does for device tasks, with the workers as they are known."""
        with self._tolerate_outages("deciding"):
            self._place(now)

    def maintain(self, now: datetime) -> None:
        """What can wait until the engine has started what was placed: renewals, losses, records, housekeeping."""
        self.commands.states.go_on()
        with self._tolerate_outages("housekeeping"):
            self.commands.apply(self.observer.renewed(now), now)
            self.commands.apply(self.observer.watched(now), now)
            self.commands.decide_lost(now)
            leased = self.runs.leased.values()
            self.cluster.record_wait_reasons(((run.key, run.held_lease) for run in leased), now)
            self.commands.apply(self.observer.stopping(now), now)
            self.commands.apply(self.gangs.watch(now), now)
            self.health.step(now)
            self._migrate_tasks(now)
            if self._periods.is_due("alternatives", now):
                self.commands.apply(self.resolver.reordered(list(self.runs.queued.values()), now), now)
            unleased = self.runs.sent.values() if self.api.outage is not None else ()
            ids = self._waiting_ids(now), self._running_ids(), [run.request_id for run in unleased]
            self.housekeeping.run(*ids, self._decided_at, now)
            if self._periods.is_due("transitions", now):
                self._save_transitions(now)
            waiting = (run.waiting_task for run in self.runs.queued.values())
            self.wait_logs.write(waiting, self.store.snapshot(), now)
            self.commands.record_placed(now)

    def take_reports(
        self, engine_reports: Mapping[Any, EngineReport], now: datetime
    ) -> tuple[dict[Any, EngineReport], bool]:
        """Handle the states that the engine reports. Returns those of unknown tasks, and whether a lease is over.

        :param engine_reports: key → the state and what the engine says beside
        """
        reports = self.observer.denied() | dict(engine_reports)
        leased = [self.runs.leased[key] for key in reports if key in self.runs.leased]
        foreign = {key: report for key, report in reports.items() if self.runs.reported(key) is None}
        self.commands.apply(self.observer.reported(reports), now)
        return foreign, any(run.phase not in LEASED for run in leased)

    def revoke(self, key: Any, now: datetime) -> None:
        """Forget a task that Airflow found stuck in the queue, unless a process of the engine has it."""
        groups = self.runs.queued, self.runs.checking, self.runs.held, self.runs.sent
        self.commands.apply([(group[key], events.Revoked()) for group in groups if key in group], now)
        if self.engine.withdraw(key) and key in self.runs.leased:
            self.commands.apply([(self.runs.leased[key], events.Revoked())], now)

    def free_ended(self, now: datetime) -> None:
        """Free the devices of ended tasks whose processes are gone."""
        self.commands.decide_lost(now)
        self.commands.apply(self.observer.looked(now), now)

    def has_new_requests(self) -> bool:
        """Whether templates of waiting tasks were rendered since `place_tasks`, so that it can place more tasks."""
        return self.resolver.has_news()

    def close(self) -> None:
        """Stop what runs beside the scheduler, and write the records that are left."""
        self.api.close()
        self.inventory.close()
        self.health.close()
        self.resolver.close()
        with self._tolerate_outages("housekeeping"):
            self.commands.record_placed()
            self._save_transitions(self.commands.clock.now())
        self.commands.states.close()

    def _place(self, now: datetime) -> None:
        self.free_ended(now)
        self._compare(now)
        self._run_cycle(now)

    def _take_inventory(self, now: datetime) -> None:
        inventory = self.inventory.poll() if self.engine.traits.is_local else None
        if inventory is not None:
            worker_before = self.store.workers().get(inventory.worker.id)
            worker = with_missing_devices(inventory.worker, worker_before) if worker_before else inventory.worker
            self.store.record([WorkerSeen(worker, inventory.telemetry)], now)
            self.inventory.note_recorded()
            self.housekeeping.local_worker = worker
            self.health.host.take_inventory(inventory, now)
            self.inventory.log_contested(self.store.snapshot())
            self.context.learn()

    def _compare(self, now: datetime) -> None:
        """Bring the waiting tasks into line with what Airflow and the store know about them."""
        if self.runs.queued:
            snapshot = with_pending_events(self.store.snapshot(), self.commands.outbox)
            self.commands.apply(self.gangs.enroll(snapshot), now)
            self.commands.apply(self.observer.waiting(snapshot, now), now)

    def _answer_checks(self, now: datetime) -> None:
        if self.runs.checking:
            self.commands.apply(self.observer.unwanted_checks(now), now)
            checks = list(self.runs.checking.values())
            self.commands.apply(self.checks.answered(checks, self.store.snapshot, now), now)

    def _run_cycle(self, now: datetime) -> None:
        """One cycle. Events that the store has recorded are no longer pending, also if a later step fails."""
        self._withdraw_forgotten(now)
        recorded = 0
        try:
            result = self.cycle.run(now, self.commands.outbox)
            recorded = result.recorded
        except CycleInterrupted as error:
            recorded = error.recorded
            raise error.cause from None
        finally:
            del self.commands.outbox[:recorded]
        self._decided_at = now
        for decision in result.plan.decisions if result.is_decided else ():
            run = self.runs.of_request(decision.request_id)
            if run is not None:
                self._act_on_decision(run, decision, now)

    def _act_on_decision(self, run: Run, decision: Decision, now: datetime) -> None:
        if isinstance(decision, Wait):
            run.waiting_task.unlogged_wait = decision
        elif isinstance(decision, Refuse) and not self.gangs.shrink(run.waiting_task):
            request = run.waiting_task.as_pending().request
            text = refusal_text(decision, request, self.store.snapshot().workers, self.hardware_wait)
            self.commands.apply([(run, events.Failed(text))], now)

    def _withdraw_forgotten(self, now: datetime) -> None:
        """Withdraw requests of other schedulers whose tasks Airflow has given up while no scheduler looked."""
        if not self._periods.is_due("forgotten", now):  # others may hold 10,000; each look asks the database
            return
        pending = with_pending_events(self.store.snapshot(), self.commands.outbox).pending
        foreign = [request.id for request in pending if self.runs.of_request(request.id) is None]
        if foreign:
            queued = self.tasks.queued(foreign)
            self.store.record([RequestWithdrawn(id_, events.NOT_WANTED) for id_ in foreign if id_ not in queued], now)

    def _migrate_tasks(self, now: datetime) -> None:
        """Preempt the leases on devices that a person wants empty, so that their tasks go on elsewhere."""
        migrations = leases_to_migrate(self.store.snapshot())
        moves = [LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, f"moved: {hold}") for lease, hold in migrations]
        for move, outcome in zip(moves, self.store.move(moves, now), strict=True):
            if isinstance(outcome, Lease):
                self.commands.notify(outcome, move.cause, now)

    def _save_transitions(self, now: datetime) -> None:
        unsaved = [] if self.commands.outbox else self.runs.unsaved()  # the outbox may have their requests
        if unsaved:
            self.store.record(unsaved, now)
            self.runs.note_saved(unsaved)

    def _waiting_ids(self, now: datetime) -> list[str]:
        waiting = (self.runs.queued, self.runs.checking, self.runs.held)
        ids = [run.request_id for runs in waiting for run in runs.values()]
        return ids + [run.request_id for run in self.observer.delayed(now)]

    def _running_ids(self) -> list[str]:
        return [run.request_id for run in self.runs.leased.values()]
