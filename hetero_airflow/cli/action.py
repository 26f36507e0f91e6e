"""What every command uses: its error handling, and access to the database."""

import functools
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import ArgumentError

from hetero_airflow.cli.output import clean, console
from hetero_airflow.contract.airflow_options import without_airflow
from hetero_airflow.errors import HeteroError, SettingsError
from hetero_airflow.store.sql.store import SqlStore


def action(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Make a function the action of a command.

    A `HeteroError` is printed as its text, with exit code 1. Log lines go to standard error, not into the output.
    """

    @functools.wraps(function)
    def run(args: Namespace) -> None:
        if without_airflow() is None:
            _prepare_airflow()
        try:
            function(args)
        except HeteroError as error:
            console(sys.stderr).out(clean(error))
            sys.exit(1)

    return run


def _prepare_airflow() -> None:
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
    from airflow.providers_manager import ProvidersManager

    ProvidersManager().initialize_providers_configuration()
    redirect_stdout_log_handlers_to_stderr()


def database() -> Any:
    """SQLAlchemy's engine for Airflow's metadata database."""
    own = without_airflow()
    if own is not None:
        return _engine(own.database_url)
    from airflow import settings

    return settings.engine


@functools.cache
def _engine(url: str) -> Engine:
    try:
        return create_engine(url, poolclass=NullPool)
    except (ArgumentError, ImportError) as error:  # the URL may have a password
        found = f"a URL that SQLAlchemy can't use ({type(error).__name__})"
        remedy = "Correct the URL, or install its driver, such as hetero-airflow[postgres]"
        raise SettingsError("[database] sql_alchemy_conn", found=found, remedy=remedy) from error


def open_store() -> SqlStore:
    """The plugin's store in Airflow's metadata database."""
    return SqlStore(database())
