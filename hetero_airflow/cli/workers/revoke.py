"""``airflow hetero revoke``: a worker's agent is refused."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import cell, show
from hetero_airflow.store.sql.worker_keys import WorkerKeys


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
