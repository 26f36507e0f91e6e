"""``airflow hetero doctor``: runs one small device task through the configured executor, and says what it saw."""

import importlib.util
import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import structlog
from airflow.api.common.delete_dag import delete_dag
from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
from airflow.api.common.trigger_dag import trigger_dag
from airflow.configuration import conf
from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.dag_processing.bundles.local import LocalDagBundle
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.jobs.job import most_recent_job
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk import timezone
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
from airflow.utils.session import create_session
from airflow.utils.state import State
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select, update

from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.output import clean, console, show
from hetero_airflow.cli.setup.checks import check_report
from hetero_airflow.cli.setup.config import check_installation
from hetero_airflow.cli.setup.trials import trials
from hetero_airflow.contract.executor_names import hetero_executor_name
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.store.store import RequestHistory

LIMIT_S = 60.0
_POLL_S = 0.5

_FRESH_S = 10.0
"""Airflow takes a DAG out of use that was not parsed for [dag_processor] stale_dag_threshold, 50 s by default."""

TASK = "look"
_DAG_FILE = '''"""`airflow hetero doctor` wrote this file, and deletes it when it ends."""

from airflow.sdk import DAG, get_parsing_context

from hetero_airflow.operators import DevicePythonOperator
from hetero_airflow.runtime.doctor_task import look

# Not for the DAG processor, which could find it here just before it is deleted, and write it down after that.
if get_parsing_context().dag_id == {dag_id!r}:
    with DAG({dag_id!r}, schedule=None, is_paused_upon_creation=False):
        DevicePythonOperator(task_id={task!r}, python_callable=look, device={device!r}, retries=0)
'''


@dataclass
class _Notes:
    """Lines with the seconds since the start. A line that was just written is not repeated."""

    began: float = field(default_factory=time.monotonic)
    last: str = ""

    def __call__(self, text: str) -> None:
        if text != self.last:
            console().out(f"{time.monotonic() - self.began:5.1f} s  {clean(text)}")
        self.last = text


@action
def doctor(args: Namespace) -> None:
    """Show what the installation lacks, run the task, and say what it saw; exit code 1 if it did not succeed."""
    DeviceRequest.parse(args.device)  # a device that nobody can request ends here
    _hush_airflow()
    problems = [finding for finding in (*check_installation(database()), *trials(database())) if not finding.is_ok]
    if problems:
        show(*check_report(problems))
    check_scheduler()
    note = _Notes()
    dag_id = f"hetero_doctor_{uuid4().hex[:8]}"
    with _dag_known(dag_id, args.device, note):
        run_id, began = _triggered(dag_id), time.monotonic()
        note(f"triggered the run {run_id}")
        state, took_s = _watched(dag_id, run_id, note), time.monotonic() - began
        seen = _seen(dag_id, run_id) if state == "success" else {}
    for text in verdict(state, seen, took_s, args.device):
        console().out(clean(text))
    sys.exit(0 if state == "success" and (not seen or seen.get("lease")) else 1)


def _hush_airflow() -> None:
    """Airflow says at length, on standard output, how it writes and deletes a DAG."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    logging.getLogger("airflow").setLevel(logging.WARNING)


def check_scheduler() -> None:
    """Refuse an installation that runs no device tasks now.

    :raises HeteroError: HeteroExecutor is not configured, or no scheduler is alive
    """
    asked = "to run a device task"
    executors = conf.get("core", "executor")
    if hetero_executor_name(executors) is None:
        remedy = "`airflow hetero config` prints the settings; a scheduler and this command need the same"
        raise HeteroError(asked, found=f"no HeteroExecutor in [core] executor = {executors}", remedy=remedy)
    with create_session(scoped=False) as session:
        job = most_recent_job("SchedulerJob", session=session)
        if job is None or not job.is_alive():
            heard = "has ever run" if job is None else f"is alive; the last one was heard of at {job.latest_heartbeat}"
            raise HeteroError(asked, found=f"that no scheduler {heard}", remedy="Start one: airflow scheduler")


@contextmanager
def _dag_known(dag_id: str, device: list[str], note: Callable[[str], None]) -> Iterator[None]:
    """Within the context, Airflow knows the DAG, and workers that read this bundle find its file."""
    bundle = writable_bundle()
    path = bundle.path / f"{dag_id}.py"
    path.write_text(_DAG_FILE.format(dag_id=dag_id, task=TASK, device=device))
    try:
        note(f"wrote {path}, in the DAG bundle {bundle.name}")
        with _airflow_parsing_context_manager(dag_id=dag_id):
            bag = BundleDagBag(path, bundle_path=bundle.path, bundle_name=bundle.name)
        for error in bag.import_errors.values():
            lines = str(error).strip().splitlines()
            raise HeteroError(
                f"the DAG file of device {shorten(device)}", found=lines[-1], remedy="Correct this installation"
            )
        sync_bag_to_db(bag, bundle.name, None)
        try:
            yield
        finally:
            _remove(dag_id)
    finally:
        path.unlink(missing_ok=True)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def writable_bundle() -> BaseDagBundle:
    """The first DAG bundle that is a folder of this machine and may be written.

    :raises HeteroError: there is none
    """
    bundles = list(DagBundlesManager().get_all_dag_bundles())
    for bundle in bundles:
        if isinstance(bundle, LocalDagBundle) and os.access(bundle.path, os.W_OK):
            return bundle
    raise HeteroError(
        "to write a DAG file",
        found=f"no local DAG bundle that is a writable folder ({', '.join(b.name for b in bundles) or 'no bundle'})",
        remedy="Run it where the DAG files are, as a user who may write there, or add a local bundle for it",
    )


def _triggered(dag_id: str) -> str:
    run = trigger_dag(dag_id=dag_id, triggered_by=DagRunTriggeredByType.CLI)
    if run is None:
        raise HeteroError("to trigger the DAG", found="no new run", remedy="Try again")
    return str(run.run_id)


def _watched(dag_id: str, run_id: str, note: Callable[[str], None]) -> str | None:
    """The task's state when it has ended, or after the limit."""
    now = time.monotonic()
    end, is_fresh_until = now + LIMIT_S, now + _FRESH_S
    while (state := _noted_state(dag_id, run_id, note)) not in State.finished and (now := time.monotonic()) < end:
        if now > is_fresh_until:
            is_fresh_until = now + _FRESH_S
            _keep_fresh(dag_id)
        time.sleep(_POLL_S)
    if state not in State.finished:
        note(f"{LIMIT_S:g} s are over: the task is stopped")
    return state


def _keep_fresh(dag_id: str) -> None:
    """Record that the DAG was parsed just now."""
    with create_session(scoped=False) as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(last_parsed_time=timezone.utcnow()))


def _noted_state(dag_id: str, run_id: str, note: Callable[[str], None]) -> str | None:
    row = select(TaskInstance.state, TaskInstance.hostname).where(
        TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id
    )
    with create_session(scoped=False) as session:
        state, host = session.execute(row).one_or_none() or (None, None)
    history = open_store().request_history(dag_id, run_id, TASK, -1)
    if state == "queued":
        note(_request_text(history))
    else:
        cause = f": {history.cause}" if state == "failed" and history is not None and history.cause else ""
        note(f"task {state or 'created'}{f' on {host}' if host else ''}{cause}")
    return str(state) if state else None


def _request_text(history: RequestHistory | None) -> str:
    if history is None:
        return "task queued; HeteroExecutor has not read its request yet"
    if history.leases and history.state != "waiting":
        lease = history.leases[-1]
        return f"leased on {lease.worker_id}: {', '.join(claim.device_id for claim in lease.claims)}"
    reason = history.decisions[0]["reason"] if history.decisions else None
    if reason is None:
        return "task waiting; the scheduler has not decided yet"
    return f"task waiting ({reason['code']}): asked {reason['asked']}, found {reason['found']}"


def _remove(dag_id: str) -> None:
    """Stop the DAG's run if it goes on, also after Ctrl-C, and delete the DAG with all its rows."""
    going_on = select(DagRun.run_id).where(DagRun.dag_id == dag_id, DagRun.state.in_(State.unfinished_dr_states))
    with create_session(scoped=False) as session:
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        for run_id in session.scalars(going_on).all():
            if dag is not None:
                set_dag_run_state_to_failed(dag=dag, run_id=run_id, commit=True, session=session)
    delete_dag(dag_id)


def _seen(dag_id: str, run_id: str) -> dict[str, str | None]:
    """What the task returned; empty if another XCom backend than Airflow's own has it."""
    query = XComModel.get_many(run_id=run_id, key="return_value", dag_ids=dag_id, limit=1)
    with create_session(scoped=False) as session:
        row = session.scalars(query).first()
        value = None if row is None else XComModel.deserialize_value(row)
    return value if isinstance(value, dict) else {}


def verdict(
    state: str | None, seen: Mapping[str, str | None], took_s: float, asked: Sequence[str] = ("cpu",)
) -> Iterator[str]:
    """What the run shows. Pure.

    :param asked: the alternatives that the task requested

    >>> print(*verdict("success", {"host": "a", "python": "3.11.2", "lease": "1 × cpu on a"}, 6.2), sep="\\n")
    The task ran on a, with Python 3.11.2 and this lease: 1 × cpu on a
    Device tasks work here. This one took 6.2 s from its trigger to its end.
    """
    if state != "success":
        yield "The task did not succeed. The lines above say how far it came."
        yield "The log of its try, and the logs of the scheduler and of the worker, say more."
        return
    if not seen:
        yield "The task succeeded. What it saw is in this installation's own XCom backend, which is not read here."
        return
    lease = seen.get("lease")
    with_lease = f"this lease: {lease}" if lease else "no lease"
    yield f"The task ran on {seen['host']}, with Python {seen['python']} and {with_lease}"
    if seen.get("variables"):
        yield f"Its devices are bound by {seen['variables']}"
    accelerators = [device for device in asked if not device.startswith("cpu")]
    if seen.get("kind") == "cpu" and asked[0] in accelerators:
        others = ", ".join(accelerators)
        yield f"It has a CPU core: none of {others} is known or free. `airflow hetero devices` lists them."
    if seen.get("torch"):
        yield f"On its device, {seen['torch']}"
    if lease:
        yield f"Device tasks work here. This one took {took_s:.1f} s from its trigger to its end."
    else:
        yield "Device tasks run, but have no own devices. `airflow hetero config --check` says what is missing."
