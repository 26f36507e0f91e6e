"""Places device tasks and looks after them, inside Airflow's scheduler.

Nothing here may stop the scheduler's loop. If the database does not answer, one warning is logged: waiting tasks
wait on, and running ones keep their devices, until it answers again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

from hetero_airflow.clock import Clock, Periods
from hetero_airflow.discovery.inventory_watch import with_missing_devices
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.executor.action_runner import ActionRunner
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_api.unleased_tasks import UnleasedTasks
from hetero_airflow.executor.airflow_db.state_store import StateCalls
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.cached_store import KnownWorkers, ToleratedOutages
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.context.reported_speeds import ReportedSpeeds
from hetero_airflow.executor.device_health.contested_log import ContestedDeviceLog
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.executor.device_health.host_inventory import HostInventory
from hetero_airflow.executor.gangs.roster import GangRoster
from hetero_airflow.executor.housekeeping import Housekeeping
from hetero_airflow.executor.leases.cluster_events import ClusterEvents
from hetero_airflow.executor.leases.event_handler import LeaseEventHandler
from hetero_airflow.executor.leases.lease_keeper import LeaseKeeper
from hetero_airflow.executor.leases.preemption import PreemptionNotices
from hetero_airflow.executor.leases.recovery import TaskRecovery
from hetero_airflow.executor.leases.spans import LeaseSpans, airflow_tracer
from hetero_airflow.executor.pending_task import PendingTask, TaskQueue
from hetero_airflow.executor.placement_checks import PlacementChecks
from hetero_airflow.executor.reconcile import is_settled, reconcile
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.executor.task_starter import TaskStarter
from hetero_airflow.health.transitions import leases_to_migrate
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Decision, Refuse, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.cycle import Cycle, CycleInterrupted
from hetero_airflow.scheduling.pending_events import with_pending_events
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestWithdrawn, WorkerSeen

log = logging.getLogger(__name__)

_NOT_WANTED = "Airflow does not want it any more"


class Dispatcher:
    """Takes device tasks from the moment when Airflow has queued them until their devices are free again."""

    def __init__(
        self,
        configuration: Configuration,
        store: SqlStore,
        policy: Policy,
        engine: AirflowEngine,
        *,
        tasks: TaskInstances,
        edges: DagEdges,
        api: ExecutionApiWatch,
        callbacks: SchedulerCallbacks,
        clock: Clock,
        queued_timeout_s: float,
        signer: GrantSigner,
    ) -> None:
        self._store = store
        self._engine = engine
        self._tasks = tasks
        self._states = StateCalls()
        self.api = api
        self.workers = KnownWorkers(store)
        self.queue = TaskQueue(callbacks)
        self.keeper = LeaseKeeper(store, engine, tasks, configuration.lease_timeout_s)
        self._context = PolicyContext(store, configuration, edges)
        self._recovery = TaskRecovery(tasks, configuration.rules, callbacks.note, self._states)
        self._preemptions = PreemptionNotices(
            store, self.keeper, tasks, configuration.grace_s, callbacks.note, clock, self._states
        )
        spans = LeaseSpans(tasks, airflow_tracer())
        self._gangs = GangRoster(store, self.keeper, tasks, self._preemptions)
        self.starter = TaskStarter(
            engine,
            self.keeper,
            self.queue,
            self.workers,
            self._gangs,
            spans=spans,
            api=api,
            callbacks=callbacks,
            clock=clock,
            airflow_queue=configuration.queue,
            queued_timeout_s=queued_timeout_s,
            signer=signer,
        )
        self._resolver = RequestResolver(tasks)
        self._runner = ActionRunner(self.queue, self.starter, self._recovery, self._resolver, store)
        self.unleased = UnleasedTasks(engine, tasks, api, callbacks, clock)
        self.checks = PlacementChecks(
            policy, tasks, self.starter.reaches, self._context, self._resolver, self.unleased.hand_over
        )
        self._cycle = Cycle(
            store,
            policy,
            self.starter,
            configuration.lease_timeout_s,
            starter=self.starter.id,
            preemptor=self._preemptions,
            policy_context=self._add_policy_context,
            obstacle=api.placement_obstacle,
            ended_since=tasks.ended_since,
        )
        self._cluster = ClusterEvents(store, engine.cluster, callbacks.note)
        self._inventory = HostInventory(configuration, lambda: {lease.id for lease in store.snapshot().leases})
        self._contested_log = ContestedDeviceLog(configuration.worker_id)
        self._health = HealthWatch(store, HostHealth(configuration.worker_id))
        self.lease_events = LeaseEventHandler(
            store, engine, self.keeper, self.queue, self.workers, self._recovery, self._health, api, callbacks, spans
        )
        self._housekeeping = Housekeeping(
            store,
            tasks,
            self._context,
            ReportedSpeeds(store, self.keeper, self.workers, self._states),
            self._preemptions,
            configuration,
            api,
            local_worker_id=configuration.worker_id if engine.traits.is_local else None,
            read_devices=lambda: self._inventory.readings(),
            queued_timeout_s=queued_timeout_s,
        )
        self._decided_at: datetime | None = None
        """When the last cycle ended that had no error."""
        self._periods = Periods(alternatives=30, forgotten=10)
        self._tolerate_outages = ToleratedOutages()

    def drop(self, key: Any, cause: str) -> None:
        """Forget a waiting task that Airflow does not want any more. Uses no database."""
        self.checks.tasks.pop(key, None)
        self.unleased.drop(key)
        self.queue.drop(key, cause)

    def place_tasks(self, now: datetime) -> None:
        """Free the devices of ended tasks, decide which tasks get free devices, and hand those to the engine."""
        with self._tolerate_outages("deciding"):
            self._resolver.begin_round()
            self._take_inventory(now)
            self._cluster.record_workers(now)
            self._place(now)
            if self.api.outage is None:
                self.checks.answer(self._store.snapshot, now)
                self.unleased.hand_over_waiting()

    def hand_on_devices(self, now: datetime) -> None:
        """What `place_tasks` does for device tasks, with the workers as they are known."""
        with self._tolerate_outages("deciding"):
            self._place(now)

    def maintain(self, now: datetime) -> None:
        """What can wait until the engine has started what was placed: renewals, losses, records, housekeeping."""
        self._states.go_on()
        with self._tolerate_outages("housekeeping"):
            self.lease_events.handle(self.keeper.renew(now), now)
            self.lease_events.handle(self.keeper.find_lost(now, can_report=self.api.outage is None), now)
            self._cluster.record_wait_reasons(((task.key, task.lease) for task in self.keeper.running.values()), now)
            self._preemptions.force_overdue(now)
            for key, text, is_done in self._gangs.watch(self.queue.tasks, now):
                if is_done:
                    self.drop(key, text)
                else:
                    self.queue.fail(key, text, now)
            self._health.step(now)
            self._migrate_tasks(now)
            if self._periods.is_due("alternatives", now):
                self._runner.rotate_alternatives(now)
            waiting = [task.request_id for task in (*self.queue.tasks.values(), *self.checks.tasks.values())]
            waiting += self.unleased.delayed_ids()
            running = [task.lease.request_id for task in self.keeper.running.values()]
            self._housekeeping.run(waiting, running, self._decided_at, now)
            self.queue.log_waits(self._store.snapshot(), now)
            self.starter.record_placed(self._tasks, self._states, now)

    def has_new_requests(self) -> bool:
        """Whether templates of waiting tasks were rendered since `place_tasks`, so that it can place more tasks."""
        return self._resolver.has_news()

    def close(self) -> None:
        """Stop what runs beside the scheduler, and write the records that are left."""
        self.api.close()
        self._inventory.close()
        self._health.close()
        self._resolver.close()
        with self._tolerate_outages("housekeeping"):
            self.starter.record_placed(self._tasks, self._states)
        self._states.close()

    def _add_policy_context(self, snapshot: Snapshot) -> Snapshot:
        """The store's snapshot with what the store does not know."""
        snapshot = self._context.add_to(snapshot)
        return replace(snapshot, workers=self._recovery.marked(snapshot))

    def _place(self, now: datetime) -> None:
        self.lease_events.free_ended(now)
        self._reconcile(now)
        self._run_cycle(now)

    def _take_inventory(self, now: datetime) -> None:
        inventory = self._inventory.poll() if self._engine.traits.is_local else None
        if inventory is not None:
            worker_before = self.workers.current().get(inventory.worker.id)
            worker = with_missing_devices(inventory.worker, worker_before) if worker_before else inventory.worker
            self._store.record([WorkerSeen(worker, inventory.telemetry)], now)
            self._inventory.note_recorded()
            self._housekeeping.local_worker = worker
            self._health.host.take_inventory(inventory, now)
            self._contested_log.write(self._store.snapshot())
            self._context.learn()

    def _reconcile(self, now: datetime) -> None:
        """Bring the waiting tasks into line with what Airflow and the store know about them.

        The store may know better: the answer to a commit may have been lost, and a scheduler that died may have
        submitted a task, or got a lease that it could not use.
        """
        if not self.queue.tasks:
            return
        snapshot = with_pending_events(self._store.snapshot(), self.queue.events)
        for task in self._gangs.enroll(self.queue.tasks.values(), snapshot):
            self.queue.withdraw(task, "its gang is tried again")
            if not task.is_excluded:
                self.queue.submit(task)
        settled = [task.request_id for task in self.queue.tasks.values() if is_settled(task, now)]
        queued, leased = self._tasks.queued(settled), self.keeper.request_ids()
        waiting = {task.request_id for task in self.queue.tasks.values()} - leased
        leases = [lease for lease in snapshot.leases if lease.request_id in waiting]
        uses = self.keeper.uses_of(leases, self.starter.id)
        actions = reconcile(self.queue.tasks, snapshot, queued=queued, leased=leased, uses=uses, now=now)
        self._runner.execute(actions, snapshot, now)

    def _run_cycle(self, now: datetime) -> None:
        """One cycle. Events that the store has recorded are no longer pending, also if a later step fails."""
        self._withdraw_forgotten(now)
        self.starter.requests = {task.request_id: key for key, task in self.queue.tasks.items() if task.request}
        recorded = 0
        try:
            result = self._cycle.run(now, self.queue.events)
            recorded = result.recorded
        except CycleInterrupted as error:
            recorded = error.recorded
            raise error.cause from None
        finally:
            del self.queue.events[:recorded]
        self._decided_at = now
        for decision in result.plan.decisions if result.is_decided else ():
            key = self.starter.requests.get(decision.request_id)
            if key in self.queue.tasks:
                self._act_on_decision(self.queue.tasks[key], decision, now)

    def _act_on_decision(self, task: PendingTask, decision: Decision, now: datetime) -> None:
        if isinstance(decision, Wait):
            self.queue.waits[task.workload.key] = decision
        elif isinstance(decision, Refuse) and not self._gangs.shrink(task):
            text = f"No known worker can ever run this: {decision.reason}. {decision.nearest}"
            self.queue.fail(task.workload.key, text, now)

    def _withdraw_forgotten(self, now: datetime) -> None:
        """Withdraw requests of other schedulers whose tasks Airflow has given up while no scheduler looked."""
        if not self._periods.is_due("forgotten", now):  # others may hold 10,000; each look asks the database
            return
        own_ids = {task.request_id for task in self.queue.tasks.values()}
        pending = with_pending_events(self._store.snapshot(), self.queue.events).pending
        foreign = [request.id for request in pending if request.id not in own_ids]
        if foreign:
            queued = self._tasks.queued(foreign)
            self._store.record([RequestWithdrawn(id_, _NOT_WANTED) for id_ in foreign if id_ not in queued], now)

    def _migrate_tasks(self, now: datetime) -> None:
        """Preempt the leases on devices that a person wants empty, so that their tasks go on elsewhere."""
        migrations = leases_to_migrate(self._store.snapshot())
        moves = [LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, f"moved: {hold}") for lease, hold in migrations]
        for move, outcome in zip(moves, self._store.move(moves, now), strict=True):
            if isinstance(outcome, Lease):
                self._preemptions.notify(outcome, move.cause, now)
