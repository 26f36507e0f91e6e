"""What every command uses: its error handling, and access to the database."""

import functools
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from airflow import settings
from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from hetero_airflow.cli.output import clean, console
from hetero_airflow.errors import HeteroError
from hetero_airflow.store.sql.store import SqlStore


def action(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Make a function the action of a command.

    A `HeteroError` is printed as its text, with exit code 1. Log lines go to standard error, not into the output.
    """

    @functools.wraps(function)
    @providers_configuration_loaded
    def run(args: Namespace) -> None:
        redirect_stdout_log_handlers_to_stderr()
        try:
            function(args)
        except HeteroError as error:
            console(sys.stderr).out(clean(error))
            sys.exit(1)

    return run


def database() -> Any:
    """SQLAlchemy's engine for Airflow's metadata database."""
    return settings.engine


def open_store() -> SqlStore:
    """The plugin's store in Airflow's metadata database."""
    return SqlStore(database())
