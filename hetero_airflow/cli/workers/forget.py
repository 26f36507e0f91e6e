"""``airflow hetero forget``: everything about a lost worker is deleted."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import cell, show
from hetero_airflow.store.sql.store import SqlStore

_MIN_UNUSED = timedelta(seconds=60)
"""Agents and schedulers that use the worker would do so several times within this time."""


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
