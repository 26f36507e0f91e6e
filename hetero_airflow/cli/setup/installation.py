"""Reads what `checks` needs: Airflow's live configuration and its database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.configuration import conf
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.cli.setup.checks import (
    Finding,
    check_checkpoints,
    check_driver,
    check_heartbeats,
    check_parallelism,
    check_pool,
    check_settings,
)
from hetero_airflow.cli.setup.recommended_settings import recommended_settings
from hetero_airflow.errors import SettingsError, StoreError
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.settings import SECTION, default
from hetero_airflow.store.sql.store import SqlStore


def read_option(section: str, option: str) -> str | None:
    """The value of an option in the file, the environment or Airflow's defaults; None if it has none."""
    value: Any = conf.get(section, option, fallback=None)
    return None if value is None else str(value)


def configured(name: str) -> str:
    """The value of an option of the section [hetero], which can be invalid."""
    return str(read_option(SECTION, name) or "").strip() or default(name)


def check_installation(engine: Engine) -> list[Finding]:
    """All findings on this installation, in the order of setting it up."""
    return list(_findings(engine))


def _findings(engine: Engine) -> Iterator[Finding]:
    yield from check_settings(recommended_settings(configured("queue"), read_option, configured("engine")))
    yield from check_heartbeats(read_option)
    try:
        read_configuration()
        yield Finding(f"section [{SECTION}]", "readable")
    except SettingsError as error:
        found = f"{error.asked}, {error.found}"
        yield Finding(f"section [{SECTION}]", found, error.remedy, "the scheduler does not start")
    yield from check_checkpoints(configured("engine"), configured("checkpoint_url"))
    yield check_driver(engine.url)
    snapshot: Snapshot | None = None
    try:
        snapshot = SqlStore(engine).snapshot()
        yield Finding("tables hetero_*", "migrated")
    except StoreError as error:
        yield Finding("tables hetero_*", error.found, error.remedy, "the scheduler cannot place tasks")
    yield _check_pool(engine, configured("pool"))
    yield check_parallelism(read_option("core", "parallelism"), snapshot)


def _check_pool(engine: Engine, name: str) -> Finding:
    from airflow.models.pool import Pool

    try:
        with engine.connect() as connection:
            return check_pool(name, connection.scalar(select(Pool.slots).where(Pool.pool == name)))
    except SQLAlchemyError as error:
        return Finding(f"pool {name}", f"no answer: {type(error).__name__}", "Fix the tables first")
