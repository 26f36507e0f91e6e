"""Fixtures of more than one folder: a PostgreSQL server that the tests start themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count

import pytest

# Before anything imports airflow: the examples that come with it register a listener, and the home of
# whoever runs the tests is not for them.
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="hetero-airflow-home-"))

from hypothesis import settings
from sqlalchemy import NullPool, create_engine, text

from tests.postgres_server import running_postgres

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """SQLAlchemy URL of a server that the session starts."""
    with running_postgres() as server:
        yield server.url


@pytest.fixture(scope="session")
def make_postgres_database(postgres_server: str) -> Callable[[], str]:
    """Makes an empty database; its URL."""
    numbers = count(1)
    engine = create_engine(postgres_server, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def make() -> str:
        name = f"hetero{next(numbers)}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return postgres_server.replace("/postgres?", f"/{name}?")

    return make
