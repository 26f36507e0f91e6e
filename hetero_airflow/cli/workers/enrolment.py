"""``airflow hetero enroll``, ``revoke`` and ``forget``: which workers may have an agent."""

import secrets
import shlex
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.agent.protocol import ENROLMENT_S, ENROLMENT_VARIABLE, Name
from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.output import age, cell, show
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.validation import first_problem

_NAME: TypeAdapter[str] = TypeAdapter(Name)

_MIN_UNUSED = timedelta(seconds=60)
"""Agents and schedulers that use the worker would do so several times within this time."""


@action
def enroll(args: Namespace) -> None:
    """Print a secret for a worker's agent."""
    show(*enroll_worker(database(), args.worker, datetime.now(UTC)))


def enroll_worker(engine: Engine, worker_id: str, now: datetime) -> Iterator[RenderableType]:
    """Make and show a secret that enrols one agent for the worker. The database keeps only its hash.

    :raises IdentityError: the worker has a key, or is a scheduler's own host
    """
    secret, until = secrets.token_urlsafe(32), now + timedelta(seconds=ENROLMENT_S)
    WorkerKeys(engine).open_enrolment(check_name(worker_id), hash_secret(secret), until, now)
    yield cell(f"Worker {worker_id} can enrol one agent within {age(now, until)}. Run this on its host:")
    yield cell("")
    yield cell(f"  {ENROLMENT_VARIABLE}={secret} airflow hetero worker --url URL --name {shlex.quote(worker_id)}")
    yield cell("")
    yield cell("URL is the address of Airflow's API server. The secret is not shown again.")


def check_name(name: str) -> str:
    """The name, if it is valid for a worker.

    :raises HeteroError: it is not valid
    """
    try:
        valid = _NAME.validate_python(name)
    except ValidationError as error:
        found = first_problem(error)[1]
        raise HeteroError(f"worker {shorten(name)}", found=found, remedy="Use another name") from error
    if not valid.isascii():
        found = "a name with characters that are not ASCII"
        raise HeteroError(f"worker {shorten(name)}", found=found, remedy="Use another name, in ASCII")
    if "," in valid:
        found = "a name with a comma, which separates the names of queues"
        raise HeteroError(f"worker {shorten(name)}", found=found, remedy="Use another name")
    return valid


@action
def revoke(args: Namespace) -> None:
    """Refuse a worker's agent from now on."""
    show(*revoke_worker(database(), args.worker, datetime.now(UTC)))


def revoke_worker(engine: Engine, worker_id: str, now: datetime) -> Iterator[RenderableType]:
    """Revoke the worker's key, or its unused secret, and say what follows.

    :raises IdentityError: the worker was never enrolled, or is revoked already
    """
    had_key = WorkerKeys(engine).revoke(worker_id, now)
    effect = "Its agent is refused, and it gets no new task" if had_key else "Its secret is not valid any more"
    yield cell(f"Worker {worker_id} is revoked. {effect}.", style="bold")
    if had_key:
        yield cell("Its running tasks start again elsewhere. `airflow hetero enroll` allows another agent for it.")


@action
def forget(args: Namespace) -> None:
    """Forget a lost worker."""
    show(*forget_worker(open_store(), args.worker, datetime.now(UTC)))


def forget_worker(store: SqlStore, worker_id: str, now: datetime) -> Iterator[RenderableType]:
    """Delete a lost worker with its key, its holds and its error records, and say what follows.

    :raises StoreError: there is no such worker, or it is still in use
    """
    was_known = store.forget(worker_id, now - _MIN_UNUSED)
    forgotten = (
        "its devices, holds, error records and key" if was_known else "the holds, error records and key of this name"
    )
    yield cell(f"Worker {worker_id} is forgotten: {forgotten} are deleted.", style="bold")
    yield cell("An agent of this name has to enrol again, with a secret from `airflow hetero enroll`.")
