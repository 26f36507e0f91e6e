"""``airflow hetero cleanup``: what an uninstallation removes. The DAGs, the settings and the checkpoints stay."""

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from airflow.configuration import get_airflow_home
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.db import DBLocks, create_global_lock
from airflow.utils.session import create_session
from airflow.utils.state import State
from rich.console import RenderableType
from sqlalchemy import delete, func, inspect, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.checkpoints.configured import checkpoint_options
from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import cell, show
from hetero_airflow.cli.setup.config import configured
from hetero_airflow.contract.local_run import LOCAL_RUNS
from hetero_airflow.engines.host.lease_files import current_leases
from hetero_airflow.engines.host.lease_folders import lease_folders
from hetero_airflow.errors import HeteroError, StoreUnavailable
from hetero_airflow.executor.db_manager import HeteroDBManager
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore

_MIN_UNUSED = timedelta(seconds=60)
"""Agents and schedulers report their workers several times within this time."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A thing that the plugin has made."""

    text: str
    remove: Callable[[], None]


@action
def cleanup(args: Namespace) -> None:
    """Remove what the plugin has made, or show it."""
    show(*clean_up(database(), configured("pool"), datetime.now(UTC), is_confirmed=args.yes))


def clean_up(engine: Engine, pool: str, now: datetime, *, is_confirmed: bool) -> Iterator[RenderableType]:
    """Remove the tables, the pool and the files of this host, if that is confirmed; say what they are.

    :raises HeteroError: something of it is in use, or the URL of the checkpoints can't be read
    """
    try:
        present = sorted(set(inspect(engine).get_table_names()) & _all_tables())
        _check_unused(engine, pool, present, now)
        leftovers = [*_tables(engine, present), *_pool(pool), *_files()]
    except SQLAlchemyError as error:
        raise StoreUnavailable(
            "to read Airflow's database", found=type(error).__name__, remedy="Check `airflow db check`"
        ) from error
    if not leftovers:
        yield cell("Nothing is left to remove: no tables, no pool, and no files on this host.")
        return
    yield cell("Removed:" if is_confirmed else "This would be removed:", style="bold")
    for leftover in leftovers:
        if is_confirmed:
            leftover.remove()
        yield cell(f"  {leftover.text}")
    yield from _remarks(is_confirmed=is_confirmed)


def _remarks(*, is_confirmed: bool) -> Iterator[RenderableType]:
    yield cell("These stay; delete what you no longer need:", style="bold")
    yield cell(f"  the checkpoints at {checkpoint_options().url}")
    yield cell("  [core] executor and the section [hetero] of Airflow's settings: choose another executor")
    yield cell("  on other hosts: the keys of agents, and the folders hetero-airflow-leases-* for temporary files")
    if is_confirmed:
        yield cell("Now run `pip uninstall hetero-airflow`. To use the plugin again, run `airflow db migrate`.")
    else:
        yield cell("Nothing was removed. `airflow hetero cleanup --yes` removes it; that can't be undone.")


def _check_unused(engine: Engine, pool: str, present: list[str], now: datetime) -> None:
    remedy = "Stop the schedulers and the agents, and wait for a minute"
    if tables.worker.name in present:
        store = SqlStore(engine)
        held = [lease for lease in store.snapshot().leases if lease.expires_at > now]
        if held:
            raise _in_use(f"tasks that hold devices ({len(held)})", "Wait until they have ended")
        recently_seen = sorted(name for name, at in store.last_seen().items() if at > now - _MIN_UNUSED)
        if recently_seen:
            raise _in_use(f"that {recently_seen[0]} was seen less than a minute ago", remedy)
    with create_session(scoped=False) as session:
        unfinished = State.unfinished - {None}
        using = (TaskInstance.pool == pool, TaskInstance.state.in_(unfinished))
        if count := session.scalar(select(func.count()).where(*using)):
            columns = TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state
            dag_id, run_id, task_id, state = session.execute(select(*columns).where(*using).limit(1)).one()
            raise _in_use(
                f"tasks in the pool {pool} that have not ended ({count}), as {dag_id}.{task_id} of {run_id} ({state})",
                "Wait until they have ended. A task of a run that began with HeteroExecutor never starts without it: "
                f"clear it in Airflow, or mark it as failed: `airflow tasks clear --task-regex {task_id} {dag_id}`",
            )
    if devices := sorted(current_leases().devices):
        raise _in_use(f"device tasks on this host, which use {', '.join(devices)}", "Wait until they have ended")


def _in_use(found: str, remedy: str) -> HeteroError:
    return HeteroError("to clean up", found=found, remedy=remedy)


def _all_tables() -> set[str]:
    return {*tables.metadata.tables, tables.VERSION_TABLE}


def _tables(engine: Engine, present: list[str]) -> Iterator[Leftover]:
    if not present:
        return
    with engine.connect() as connection:
        rows = sum(
            connection.scalar(select(func.count()).select_from(tables.metadata.tables[name])) or 0
            for name in present
            if name in tables.metadata.tables
        )

    def drop() -> None:
        with (
            create_session(scoped=False) as session,
            create_global_lock(session, lock=DBLocks.MIGRATIONS),
            engine.begin() as connection,
        ):
            HeteroDBManager(session).drop_tables(connection)  # type: ignore[no-untyped-call]

    yield Leftover(f"{len(present)} tables (rows: {rows:,}): {', '.join(present)}", drop)


def _pool(name: str) -> Iterator[Leftover]:
    if name == Pool.DEFAULT_POOL_NAME:
        return

    def remove() -> None:
        with create_session(scoped=False) as session:
            session.execute(delete(Pool).where(Pool.pool == name))

    with create_session(scoped=False) as session:
        if session.scalar(select(Pool.id).where(Pool.pool == name)) is not None:
            yield Leftover(f"the pool {name}", remove)


def _files() -> Iterator[Leftover]:
    for folder in dict.fromkeys([Path(get_airflow_home()) / LOCAL_RUNS, *lease_folders()]):
        if folder.is_dir():
            yield Leftover(f"the folder {folder}", partial(shutil.rmtree, folder))
