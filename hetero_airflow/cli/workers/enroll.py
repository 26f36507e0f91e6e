"""``airflow hetero enroll``: a secret with which one agent registers for a worker."""

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
from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import age, cell, show
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.validation import first_problem

_NAME: TypeAdapter[str] = TypeAdapter(Name)


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
