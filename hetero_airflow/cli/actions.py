"""What the commands do: read, have a pure function make the text, print. Imported when a command runs."""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from hetero_airflow.cli.output import clean, console, show, show_json
from hetero_airflow.errors import HeteroError

if TYPE_CHECKING:
    from hetero_airflow.model.plan import Plan
    from hetero_airflow.model.snapshot import Snapshot
    from hetero_airflow.store.sql.store import SqlStore


def _action(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Turn an error of ours into its text and exit code 1, and keep log lines out of what is printed."""

    @functools.wraps(function)
    @providers_configuration_loaded
    def run(args: Namespace) -> None:
        redirect_stdout_log_handlers_to_stderr()
        try:
            function(args)
        except HeteroError as error:
            console(sys.stderr).out(clean(error))
            sys.exit(1)

    return run


@_action
def devices(args: Namespace) -> None:
    """Look at this machine's hardware now, and at what people and its past errors say of it, where that is known."""
    from hetero_airflow.cli.workers.devices import device_report
    from hetero_airflow.cli.workers.drain import holds_here
    from hetero_airflow.discovery.discover import discover
    from hetero_airflow.executor.configuration import read_configuration
    from hetero_airflow.model.hold import with_holds

    configuration = read_configuration()
    inventory = discover(
        configuration.worker_id, labels=configuration.labels, probe_timeout_s=configuration.probe_timeout_s
    )
    worker = with_holds(inventory.worker, holds_here(_database(), configuration.worker_id))
    inventory = inventory.model_copy(update={"worker": worker})
    if args.json:
        show_json(inventory.model_dump(mode="json"))
    else:
        show(*device_report(inventory))


@_action
def workers(args: Namespace) -> None:
    """The workers that the store knows."""
    from hetero_airflow.cli.workers.workers import worker_report, workers_at_site, workers_json
    from hetero_airflow.executor.configuration import read_configuration

    store = _open_store()
    snapshot, last_seen = store.snapshot(), store.last_seen()
    if args.site:
        snapshot = workers_at_site(snapshot, args.site)
    if args.json:
        show_json(workers_json(snapshot, last_seen, store.telemetry()))
    else:
        timeout_s = read_configuration().worker_timeout_s
        show(*worker_report(snapshot, last_seen, store.heartbeats(), datetime.now(UTC), timeout_s))


@_action
def drain(args: Namespace) -> None:
    """No new task for a worker or a device."""
    from hetero_airflow.cli.workers.drain import drain_hold, drain_report, find_target
    from hetero_airflow.store.store import HoldPlaced

    store, now = _open_store(), datetime.now(UTC)
    before = store.snapshot()
    bar = drain_hold(find_target(args.target, before), before, moves=args.move, reason=args.reason, now=now)
    store.record([HoldPlaced(bar)], now)
    show(*drain_report(bar, store.snapshot()))


@_action
def undrain(args: Namespace) -> None:
    """Tasks for a worker or a device again."""
    from hetero_airflow.cli.workers.drain import find_target, undrain_events, undrain_report

    store = _open_store()
    before = store.snapshot()
    target = find_target(args.target, before)
    store.record(undrain_events(target, before), datetime.now(UTC))
    show(*undrain_report(target, before, store.snapshot()))


@_action
def enroll(args: Namespace) -> None:
    """A secret for a worker's agent."""
    from hetero_airflow.cli.workers.enroll import enroll_worker

    show(*enroll_worker(_database(), args.worker, datetime.now(UTC)))


@_action
def revoke(args: Namespace) -> None:
    """No more word from a worker's agent."""
    from hetero_airflow.cli.workers.enroll import revoke_worker

    show(*revoke_worker(_database(), args.worker, datetime.now(UTC)))


@_action
def worker(args: Namespace) -> None:
    """This host's agent. It opens no database: all that it tells goes through the API server."""
    from airflow.configuration import AIRFLOW_HOME

    from hetero_airflow.cli.workers.enroll import run_agent
    from hetero_airflow.executor.configuration import read_configuration

    home = Path(AIRFLOW_HOME)
    run_agent(read_configuration(), home, url=args.url, name=args.name, engine=args.engine, labels=args.labels)


@_action
def queue(args: Namespace) -> None:
    """Who waits, and who holds what."""
    from hetero_airflow.cli.requests.placed_requests import placed_requests
    from hetero_airflow.cli.requests.queue import queue_entries, queue_json, queue_report

    now = datetime.now(UTC)
    live = _live_snapshot()
    placed = placed_requests(_database(), [lease.request_id for lease in live.leases])
    waiting = queue_entries(live, _deciding()[0](live, now))
    if args.json:
        show_json(queue_json(waiting, live, placed))
    else:
        show(*queue_report(waiting, live, placed, now))


@_action
def explain(args: Namespace) -> None:
    """Why one task waits, or got what it has."""
    from hetero_airflow.cli.requests.explain import explain_report, history_json
    from hetero_airflow.cli.requests.forecast import forecast_json, forecast_start
    from hetero_airflow.cli.requests.missing_request import missing_request_error

    now = datetime.now(UTC)
    request_history = _open_store().request_history(args.dag_id, args.run_id, args.task_id, args.map_index)
    if request_history is None:
        raise missing_request_error(args.dag_id, args.run_id, args.task_id, args.map_index)
    live = _live_snapshot()
    decide, period_s = _deciding()
    foresight = forecast_start(request_history, live, decide, now, period_s)
    if args.json:
        show_json(history_json(request_history) | forecast_json(foresight))
    else:
        show(*explain_report(request_history, {worker.id: worker for worker in live.workers}, now, foresight))


@_action
def snapshot(args: Namespace) -> None:
    """All that a decision looks at."""
    from hetero_airflow.store.snapshot_file import snapshot_text

    console().out(snapshot_text(_live_snapshot(), datetime.now(UTC)), end="")


@_action
def plan(args: Namespace) -> None:
    """A DAG run that has not begun."""
    from hetero_airflow.cli.simulation.plan import plan_json, plan_report
    from hetero_airflow.cli.simulation.plan_arguments import read_plan_arguments
    from hetero_airflow.executor.configuration import read_configuration

    asked = read_plan_arguments(args, read_configuration().policy, datetime.now(UTC), _live_snapshot, _database)
    rehearsal = asked.rehearse()
    if args.json:
        show_json(plan_json(rehearsal, asked.dag_id, asked.policy))
    else:
        show(*plan_report(rehearsal, asked.dag_id, asked.policy, asked.source))
    sys.exit(1 if rehearsal.problems else 0)


@_action
def simulate(args: Namespace) -> None:
    """Policies side by side on a trace or on this installation's history."""
    from hetero_airflow.cli.simulation.progress_bars import progress_bars
    from hetero_airflow.cli.simulation.simulate import simulate_report, write_report
    from hetero_airflow.cli.simulation.simulate_arguments import read_experiment
    from hetero_airflow.cli.simulation.task_history import history_workload
    from hetero_airflow.executor.configuration import read_configuration
    from hetero_airflow.simulator.experiment import run_experiment
    from hetero_airflow.simulator.reports.figures import measure, measure_timing
    from hetero_airflow.simulator.reports.tables import as_json

    configuration = read_configuration()
    experiment, window = read_experiment(
        args,
        configuration.policy,
        history=lambda days, classes: history_workload(_database(), _open_store(), days, datetime.now(UTC), classes),
        known=lambda: _open_store().snapshot().workers,
    )
    experiment = replace(experiment, options=replace(experiment.options, shares=configuration.shares))
    with progress_bars() as progress:
        records = list(run_experiment(experiment, progress))
    figures = [measure(record, window) for record in records]
    timings = [measure_timing(record) for record in records] if args.timing else []
    if args.html:
        write_report(Path(args.html), records, figures)
    if args.json:
        console().out(as_json(figures, timings), end="")
    else:
        show(*simulate_report(figures, timings))


@_action
def render(args: Namespace) -> None:
    """What a device task would send to Kubernetes."""
    from hetero_airflow.cli.requests.render import render_task

    text = render_task(args.dag_id, args.task_id, args.map_index, dra=args.dra, output=args.output)
    console().out(text, end="")


@_action
def config(args: Namespace) -> None:
    """The settings that an installation needs, or what it lacks."""

    from hetero_airflow.cli.setup.checks import check_report
    from hetero_airflow.cli.setup.config import environment_text, ini_text
    from hetero_airflow.cli.setup.installation import check_installation, configured, read_option
    from hetero_airflow.cli.setup.recommended_settings import recommended_settings

    if args.check:
        findings = check_installation(_database())
        show(*check_report(findings))
        sys.exit(0 if all(finding.is_well for finding in findings) else 1)
    settings = recommended_settings(configured("queue"), read_option, configured("engine"))
    text = environment_text if args.env else ini_text
    console().out(text(settings, configured("pool")))


@_action
def schema(args: Namespace) -> None:
    """What a request may look like as JSON."""
    from hetero_airflow.model.request import DeviceRequest

    show_json(DeviceRequest.model_json_schema())


def _database() -> Any:
    from airflow import settings

    return settings.engine


def _open_store() -> SqlStore:
    from hetero_airflow.store.sql.store import SqlStore

    return SqlStore(_database())


def _live_snapshot() -> Snapshot:
    """The store's snapshot with what the scheduler believes besides."""
    from hetero_airflow.executor.configuration import read_configuration
    from hetero_airflow.executor.context.dag_edges import DagEdges
    from hetero_airflow.executor.context.policy_context import PolicyContext
    from hetero_airflow.executor.context.site_links import SiteLinks

    store = _open_store()
    configuration = read_configuration()
    beliefs = PolicyContext(store, configuration.shares, DagEdges(), SiteLinks(configuration.site_links))
    beliefs.refresh()
    return replace(beliefs.add_to(store.snapshot(), configuration.min_run_s), can_preempt=True)


def _deciding() -> tuple[Callable[[Snapshot, datetime], Plan], float | None]:
    """What the scheduler's next cycle decides on a snapshot, and the policy's period in seconds.

    From the moment on at which the policy raises, priority stands in for it.
    """
    from hetero_airflow.executor.configuration import read_configuration
    from hetero_airflow.policies import load_policy
    from hetero_airflow.policies.policy import period_of
    from hetero_airflow.policies.priority import PriorityPolicy

    name = read_configuration().policy
    policy = load_policy(name)

    def decide(snapshot: Snapshot, now: datetime) -> Plan:
        nonlocal policy
        try:
            return policy.decide(snapshot, now)
        except HeteroError:
            raise
        except Exception as error:  # noqa: BLE001  a policy from another package may raise anything
            text = f"The policy {name} raised {type(error).__name__}: {error}. As in the scheduler, priority decides."
            console(sys.stderr).out(clean(text))
            policy = PriorityPolicy()
            return policy.decide(snapshot, now)

    return decide, period_of(policy)
