"""Wires the parts of the executor. No other module makes them."""

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

from hetero_airflow.checkpoints.configured import data_cache_root
from hetero_airflow.clock import Clock
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.executor.airflow_db.state_store import StateCalls
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.executor.command_runner import CommandRunner
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.context.reported_speeds import ReportedSpeeds
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.executor.device_health.host_inventory import HostInventory
from hetero_airflow.executor.dispatcher import Dispatcher
from hetero_airflow.executor.explanation.live_snapshot import tolerant_policy
from hetero_airflow.executor.gangs.roster import GangRoster
from hetero_airflow.executor.housekeeping import Housekeeping
from hetero_airflow.executor.leases.cluster_events import ClusterEvents
from hetero_airflow.executor.leases.recovery import TaskRecovery
from hetero_airflow.executor.leases.spans import LeaseSpans, airflow_tracer
from hetero_airflow.executor.observer import Observer
from hetero_airflow.executor.placement_checks import PlacementChecks
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.run_index import Runs
from hetero_airflow.executor.task_log import SchedulerCallbacks
from hetero_airflow.executor.wait_logs import WaitLogs
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.runtime.data.holdings import HoldingsWatch
from hetero_airflow.scheduling.cycle import Cycle

log = logging.getLogger(__name__)


class Outside(NamedTuple):
    """What a test replaces: all that is not this scheduler's own."""

    store: CachedSnapshotStore
    engine: AirflowEngine
    tasks: TaskInstances
    edges: DagEdges
    api: ExecutionApiWatch
    callbacks: SchedulerCallbacks
    clock: Clock
    signer: GrantSigner


def make_dispatcher(
    configuration: Configuration, policy: Policy, runs: Runs, outside: Outside, queued_timeout_s: float
) -> Dispatcher:
    """The parts between Airflow and the store.

    :param queued_timeout_s: Airflow's ``[scheduler] task_queued_timeout``
    """
    store, engine, tasks, edges, api, callbacks, clock, signer = outside
    scheduler = uuid4().hex  # a restarted scheduler is another one
    states, grace = StateCalls(), timedelta(seconds=configuration.grace_s)
    hardware_wait = timedelta(seconds=configuration.wait_for_hardware_s)
    context = PolicyContext(store, configuration, edges)
    recovery = TaskRecovery(tasks, configuration.rules, callbacks.note, states)
    health = HealthWatch(store, HostHealth(configuration.worker_id))

    resolver = RequestResolver(store, tasks, recovery, lambda worker_id: commands.reaches(worker_id))
    observer = Observer(
        runs, store, engine, tasks, api, recovery, resolver,
        scheduler=scheduler, lease_timeout=timedelta(seconds=configuration.lease_timeout_s), grace=grace,
    )  # fmt: skip
    commands = CommandRunner(
        runs, observer, store, engine, tasks, recovery, health, api, callbacks, states,
        LeaseSpans(tasks, airflow_tracer()), clock, signer, scheduler,
        airflow_queue=configuration.queue, grace=grace, queued_timeout_s=queued_timeout_s,
    )  # fmt: skip

    def add_policy_context(snapshot: Snapshot) -> Snapshot:
        return recovery.with_marks(context.add_to(snapshot))

    def add_preemption_context(snapshot: Snapshot) -> Snapshot:
        return replace(add_policy_context(snapshot), can_preempt=True)

    def hardware_deadline(request_id: str) -> datetime | None:
        run = runs.of_request(request_id)
        return None if run is None else run.waiting_task.hardware_deadline(hardware_wait)

    cycle = Cycle(
        store,
        policy,
        commands,
        configuration.lease_timeout_s,
        starter=scheduler,
        preemptor=commands,
        policy_context=add_policy_context,
        obstacle=api.placement_obstacle,
        ended_since=tasks.ended_since,
        hardware_deadline=hardware_deadline,
    )
    housekeeping = Housekeeping(
        store,
        tasks,
        context,
        ReportedSpeeds(store, runs, states),
        configuration,
        api,
        local_worker_id=configuration.worker_id if engine.traits.is_local else None,
        read_devices=lambda: dispatcher.inventory.readings(),
        look_at_data=HoldingsWatch(data_cache_root()).data,
        queued_timeout_s=queued_timeout_s,
    )
    dispatcher = Dispatcher(
        runs, observer, commands, cycle, resolver,
        PlacementChecks(policy, commands.reaches, context, resolver, hardware_wait),
        GangRoster(store, runs, tasks, commands.notify),
        store, engine, tasks, api, context,
        ClusterEvents(store, engine.cluster, callbacks.note),
        HostInventory(configuration, lambda: {lease.id for lease in store.snapshot().leases}),
        health,
        housekeeping,
        WaitLogs(add_preemption_context, *tolerant_policy(configuration.policy, log.debug)),
        hardware_wait,
    )  # fmt: skip
    return dispatcher
