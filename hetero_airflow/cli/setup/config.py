"""``airflow hetero config``: the settings that an installation needs, or a check of those that it has."""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from airflow.configuration import conf
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import clean, console, show
from hetero_airflow.cli.setup.checks import (
    Finding,
    Setting,
    check_checkpoints,
    check_device_users,
    check_driver,
    check_engines,
    check_heartbeats,
    check_option_names,
    check_options,
    check_parallelism,
    check_pool,
    check_problems,
    check_report,
    check_settings,
    check_simulated_devices,
    recommended_settings,
)
from hetero_airflow.cli.setup.trials import trials
from hetero_airflow.errors import StoreError
from hetero_airflow.executor.configuration import option_errors
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.settings import SECTION, default
from hetero_airflow.store.sql.store import SqlStore


@action
def config(args: Namespace) -> None:
    """Print the settings, or check the installation; exit code 1 if it lacks something."""
    if args.check:
        findings = [*check_installation(database()), *trials(database())]
        show(*check_report(findings))
        sys.exit(0 if all(finding.is_ok for finding in findings) else 1)
    settings = recommended_settings(configured("queue"), read_option, configured("engine"))
    text = environment_text if args.env else ini_text
    console().out(text(settings, configured("pool")))


def ini_text(settings: Iterable[Setting], pool: str) -> str:
    """Sections for airflow.cfg; a comment over each setting says what happens without it. Pure."""
    lines = ["# Merge these into the sections of airflow.cfg, or set them as variables: airflow hetero config --env"]
    for section, group in groupby(settings, key=lambda setting: setting.recommendation.section):
        lines += ["", f"[{section}]"]
        for setting in group:
            value = setting.wanted.replace("%", "%%")
            lines += [_cost(setting), f"{setting.recommendation.option} = {clean(value)}"]
    return "\n".join([*lines, "", *_notes(pool)])


def environment_text(settings: Iterable[Setting], pool: str) -> str:
    """Lines for a shell. Pure."""
    lines = []
    for setting in settings:
        lines += [_cost(setting), f"export {setting.recommendation.variable}={shlex.quote(clean(setting.wanted))}", ""]
    return "\n".join([*lines, *_notes(pool)])


def _cost(setting: Setting) -> str:
    return f"# Without it, {setting.recommendation.cost}."


def _notes(pool: str) -> list[str]:
    return [
        f"# The executor creates the pool {clean(pool)} of device tasks at its first start.",
        "# This creates the tables: airflow db migrate",
        "# SQLite supports one scheduler. A PostgreSQL URL names its driver, as in postgresql+psycopg2://user@host/airflow,",
        "# since SQLAlchemy 2.1 reads postgresql:// as psycopg 3.",
        "# This checks the installation: airflow hetero config --check",
    ]


def read_option(section: str, option: str) -> str | None:
    """The value of an option in the file, the environment or Airflow's defaults; None if it has none."""
    value: Any = conf.get(section, option, fallback=None)
    return None if value is None else str(value)


def configured(name: str) -> str:
    """The value of an option of the section [hetero], which can be invalid."""
    return str(read_option(SECTION, name) or "").strip() or default(name)


def check_installation(engine: Engine) -> Iterator[Finding]:
    """The findings on the settings of this installation, in the order of setting it up."""
    yield from check_settings(recommended_settings(configured("queue"), read_option, configured("engine")))
    yield from check_heartbeats(read_option)
    yield from check_option_names(conf.getsection(SECTION) or {})
    yield from check_options(option_errors())
    yield from check_simulated_devices(os.environ)
    yield from check_checkpoints(configured("engine"), configured("checkpoint_url"))
    yield check_driver(engine.url)
    snapshot: Snapshot | None = None
    try:
        snapshot = SqlStore(engine).snapshot()
        yield Finding("tables hetero_*", "migrated")
    except StoreError as error:
        yield Finding("tables hetero_*", error.found, error.remedy, "the scheduler cannot place tasks")
    yield _check_pool(engine, configured("pool"))
    yield check_parallelism(read_option("core", "parallelism"), snapshot, configured("engine"))
    if snapshot:
        yield from check_engines(configured("engine"), snapshot)
        yield from check_device_users(snapshot)
        yield from check_problems(snapshot)


def _check_pool(engine: Engine, name: str) -> Finding:
    from airflow.models.pool import Pool

    try:
        with engine.connect() as connection:
            return check_pool(name, connection.scalar(select(Pool.slots).where(Pool.pool == name)))
    except SQLAlchemyError as error:
        return Finding(f"pool {name}", f"no answer: {type(error).__name__}", "Fix the tables first")
