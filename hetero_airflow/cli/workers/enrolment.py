"""``airflow hetero enroll``, ``token``, ``revoke`` and ``forget``: which workers may have an agent."""

import secrets
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.agent.protocol import ENROLMENT_S, ENROLMENT_VARIABLE, Name
from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.output import age, cell, show, table
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.store.sql.join_tokens import JoinToken, JoinTokens
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.units import parse_duration_s
from hetero_airflow.validation import first_problem

_NAME: TypeAdapter[str] = TypeAdapter(Name)

MAX_WORKERS = 100_000

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


@action
def token(args: Namespace) -> None:
    """Print a token with which workers enrol by themselves."""
    show(*make_token(database(), args.names, args.workers, args.valid, datetime.now(UTC)))


def make_token(engine: Engine, names: str, workers: int, valid: str, now: datetime) -> Iterator[RenderableType]:
    """Make and show a join token. The database keeps only its hash.

    :param names: a pattern of the workers' names, as of a shell
    :param workers: how many of them may be there at the same time
    :param valid: how long it lets workers join
    :raises HeteroError: an argument is not valid
    """
    pattern, seconds = check_name(names), parse_duration_s(valid, "--valid")
    if not 1 <= workers <= MAX_WORKERS:
        found = f"a number outside 1 to {MAX_WORKERS}"
        raise HeteroError(f"--workers {workers}", found=found, remedy="Say how many workers may join")
    secret, id_ = secrets.token_urlsafe(32), f"join-{secrets.token_hex(4)}"
    until = now + timedelta(seconds=seconds)
    JoinTokens(engine).create(JoinToken(id_, pattern, workers, until, now, None), hash_secret(secret))
    yield cell(f"Join token {id_}: workers with names like {pattern}, up to {workers} at a time, can enrol for")
    yield cell(f"{age(now, until)}. Run this on each of their hosts, with a name of its own (default: the host's):")
    yield cell("")
    yield cell(f"  {ENROLMENT_VARIABLE}={secret} airflow hetero worker --url URL")
    yield cell("")
    yield cell("Who has the secret can enrol such a worker and gets its tasks: keep it in a secret store. It is not")
    yield cell(f"shown again. `airflow hetero revoke --token {id_}` ends it.")


@action
def tokens(args: Namespace) -> None:
    """List the join tokens."""
    show(*tokens_report(JoinTokens(database()).all(), datetime.now(UTC)))


def tokens_report(known: Sequence[JoinToken], now: datetime) -> Iterator[RenderableType]:
    """The tokens as a table. Pure."""
    if not known:
        yield cell("There is no join token. `airflow hetero token --names PATTERN` makes one.")
        return
    rows = [
        (cell(each.id), cell(each.names), cell(f"{each.workers} / {each.max_workers}"), cell(_validity(each, now)))
        for each in known
    ]
    yield table(("Token", "Names", "Workers", "Valid"), rows)


def _validity(token: JoinToken, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {age(token.revoked_at, now)} ago"
    return f"for {age(now, token.until)}" if now < token.until else f"ended {age(token.until, now)} ago"


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
    """Refuse a worker's agent, or a join token, from now on."""
    if (args.worker is None) == (args.token is None):
        remedy = "Name a worker, or give --token and the id that `airflow hetero tokens` shows"
        raise HeteroError("to revoke", found="neither a worker nor a token, or both", remedy=remedy)
    now = datetime.now(UTC)
    show(*(revoke_worker(database(), args.worker, now) if args.worker else revoke_token(database(), args.token, now)))


def revoke_token(engine: Engine, id: str, now: datetime) -> Iterator[RenderableType]:
    """Let nobody join with a token any more, and say what follows.

    :raises IdentityError: there is no such token, or it is revoked already
    """
    workers = JoinTokens(engine).revoke(id, now)
    yield cell(f"Join token {id} is revoked. Nobody can enrol with it.", style="bold")
    if workers:
        yield cell(f"{workers} of its workers stay, with keys of their own. `airflow hetero revoke WORKER` ends one.")


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
