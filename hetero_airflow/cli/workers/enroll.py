"""``airflow hetero enroll``, ``revoke`` and ``worker``: who may speak for a worker, and the agent that does."""

from __future__ import annotations

import logging
import os
import random
import secrets
import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.agent.agent import Agent
from hetero_airflow.agent.error_watch import ErrorWatch
from hetero_airflow.agent.lease_watch import LeaseWatch
from hetero_airflow.agent.protocol import ENROLMENT_S, ENROLMENT_VARIABLE, SCHEDULER_ENGINE, Name
from hetero_airflow.agent.startup import StopSignals, key_path, open_connection
from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.cli.output import age, cell
from hetero_airflow.discovery.inventory_watch import InventoryWatch
from hetero_airflow.engines.remote import worker_queue
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.executor.configuration import Configuration, parse_labels
from hetero_airflow.store.sql.worker_keys import WorkerKeys

log = logging.getLogger(__name__)

_NAME: TypeAdapter[str] = TypeAdapter(Name)


def check_name(name: str) -> str:
    """The name, if a worker may have it.

    :raises HeteroError: it may not
    """
    try:
        known = _NAME.validate_python(name)
    except ValidationError as error:
        found = f"a name that {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        raise HeteroError(f"worker {shorten(name)}", found=found, remedy="Give it another one") from error
    if "," in known:
        found = "a name with a comma, which separates the names of queues"
        raise HeteroError(f"worker {shorten(name)}", found=found, remedy="Give it another one")
    return known


def enroll_worker(database: Engine, worker_id: str, now: datetime) -> Iterator[RenderableType]:
    """Make a secret that enrols one agent for the worker, and tell it: it is kept as a hash only.

    :raises IdentityError: the worker has a key, or is a scheduler's own host
    """
    secret, until = secrets.token_urlsafe(32), now + timedelta(seconds=ENROLMENT_S)
    WorkerKeys(database).open_enrolment(check_name(worker_id), hash_secret(secret), until, now)
    yield cell(f"Worker {worker_id} may enrol one agent within {age(now, until)}. On its host:")
    yield cell("")
    yield cell(f"  {ENROLMENT_VARIABLE}={secret} airflow hetero worker --url URL --name {shlex.quote(worker_id)}")
    yield cell("")
    yield cell("URL is that of Airflow's API server. The secret is not shown again.")


def revoke_worker(database: Engine, worker_id: str, now: datetime) -> Iterator[RenderableType]:
    """Hear the worker's agent no more.

    :raises IdentityError: it was never enrolled, or is revoked already
    """
    had_key = WorkerKeys(database).revoke(worker_id, now)
    what = "Its agent is refused from now on, and it gets no new task" if had_key else "Its secret enrols nothing now"
    yield cell(f"Worker {worker_id} is revoked. {what}.", style="bold")
    if had_key:
        yield cell("What runs there runs elsewhere. `airflow hetero enroll` lets another agent speak for it.")


def run_agent(
    configuration: Configuration, home: Path, *, url: str, name: str | None, engine: str, labels: str | None
) -> None:
    """Be the agent of this host until SIGTERM. A second one does not wait for the tasks that run here: they are lost.

    :raises HeteroError: it has no key, the server refuses it for good, or labels that can't be read
    """
    worker_id = check_name(name or configuration.worker_id)
    if engine == SCHEDULER_ENGINE:
        raise HeteroError(f"--engine {engine}", found="the scheduler's own", remedy="Say what runs the tasks here")
    own = configuration.labels if labels is None else parse_labels(labels, "--labels")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each heartbeat
    log.info("The worker's own queue is %s: it alone listens to it.", worker_queue(worker_id))
    leases = LeaseWatch(worker_id)
    signals, rng = StopSignals(), random.Random()  # noqa: S311  spreads retries, nothing secret
    signals.listen()
    secret = os.environ.pop(ENROLMENT_VARIABLE, "")  # not for the processes that discovery starts
    link = open_connection(url, worker_id, key_path(home, worker_id), secret, pause=signals.pause, rng=rng)
    if link is None:
        return
    watch = InventoryWatch(
        worker_id,
        own,
        interval_s=configuration.discovery_interval_s,
        probe_timeout_s=configuration.probe_timeout_s,
    )
    errors = ErrorWatch()
    try:
        Agent(worker_id, engine, watch, leases, errors, link, pause=signals.pause, rng=rng).run()
    finally:
        watch.close()
        errors.close()
        link.close()
