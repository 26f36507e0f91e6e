"""What all tests share: a PostgreSQL server that the tests start, and how pytest-xdist spreads the tests.

The tests that boot an Airflow mostly wait. They run in a process of their own, one after the other, beside the tests
that compute. Each group below shares one process, so that its tests share their Airflow.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

# Before anything imports airflow: the examples that come with it register a listener, and the home of
# whoever runs the tests is not for them.
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="hetero-airflow-home-"))

from hypothesis import settings
from sqlalchemy import NullPool, create_engine, text

from tests.postgres_server import running_postgres

HERE = Path(__file__).parent
GROUPS = {
    "airflow on SQLite": ("system",),
    "airflow in other configurations": (
        "dags/test_example_dags.py",
        "system/test_celery.py",
        "tools",
        "web/test_every_route.py",
    ),
    "command line": ("cli",),
}
"""Group → the folders and files of its tests, below this folder. Only tests with the marker ``system`` are grouped."""
ON_POSTGRES = "airflow_on_postgres"
"""The fixture that takes a test of ``system`` to the other configurations."""

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


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core, and two for the tests that wait for an Airflow."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests into their groups, before pytest-xdist reads them."""
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str | None:
    place = item.path.relative_to(HERE).as_posix() if HERE in item.path.parents else ""
    _, others, _ = GROUPS
    if place.startswith("system/") and ON_POSTGRES in (item.name + " ".join(getattr(item, "fixturenames", ()))):
        return others
    groups = {path: group for group, paths in GROUPS.items() for path in paths}
    if not (place.startswith("system/") or item.get_closest_marker("system")):
        return None
    matching = [path for path in groups if place == path or place.startswith(f"{path}/")]
    return groups[max(matching, key=len)] if matching else None
