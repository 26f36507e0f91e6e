"""What all tests share: a PostgreSQL server that the tests start, and how pytest-xdist spreads the tests.

The tests that boot an Airflow mostly wait. They run in processes of their own, one after the other, beside the tests
that compute. Each group below shares one process, so that its tests share their Airflow.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count

import pytest

# Before anything imports airflow: the examples that come with it register a listener, and the home of
# whoever runs the tests is not for them.
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="hetero-airflow-home-"))
# Lease files go below TMPDIR, which tests set, and not into the user's runtime directory.
os.environ["XDG_RUNTIME_DIR"] = os.path.join(os.environ["AIRFLOW_HOME"], "no-runtime-directory")
# Before anything imports torch: the threads of one computation compute while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings
from sqlalchemy import NullPool, create_engine, text
from xdist.scheduler import LoadScopeScheduling

from tests.postgres_server import running_postgres
from tests.warm_airflow import WarmAirflow

GROUPS = {
    "airflow on SQLite": ("tests/system/",),
    "airflow on PostgreSQL": (
        "tests/system/test_beside_other_executors.py",
        "tests/system/test_gangs.py",
        "tests/dags/test_example_dags.py",
    ),
    "airflow in other configurations": (
        "tests/system/test_celery.py",
        "tests/system/test_outages.py",
        "tests/tools/test_demo.py",
        "tests/web/test_every_route.py",
    ),
    "command line": (
        "tests/cli/test_commands.py",
        "tests/cli/test_rehearsing_commands.py",
        "tests/cli/workers/test_enroll.py",
        "tests/cli/requests/test_decisions.py",
        "tests/cli/requests/test_render.py",
        "tests/cli/requests/test_usage.py",
        "tests/cli/simulation/test_task_history.py",
    ),
    "control plane": ("tests/system/kubernetes/",),
    "type checker": ("tests/operators/test_types.py",),
    "package": ("tests/packaging/",),
    "page": ("tests/web/test_page.py",),
}
"""Group → the beginnings of its tests' node ids. The longest one counts.

The tests of other files spread over all processes, also those of one file. So a fixture of a file that computes for
long needs a group: each process would compute it.
"""
ON_POSTGRES = "[airflow_on_postgres"
"""The parameter that takes a test to the second group, which has time left for the example DAGs."""

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def warm_airflow() -> None:
    """The Airflows of tests start as forks; `tests.warm_airflow` says what differs."""
    if module := sys.modules.get("local_airflow"):
        module.LocalAirflow.make_starter = WarmAirflow


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


def pytest_collection_finish() -> None:
    """What is loaded by now lives until the end; so no garbage collection has to visit it. It saves 5 % of the time."""
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core, and three for the tests that wait for an Airflow."""
    return (os.cpu_count() or 1) + 3


class AirflowScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps the tests of a group in one process, in their order; the largest groups start first."""

    def _split_scope(self, nodeid: str) -> str:
        if ON_POSTGRES in nodeid:
            return "airflow on PostgreSQL"
        groups = {start: group for group, starts in GROUPS.items() for start in starts if nodeid.startswith(start)}
        return groups[max(groups, key=len)] if groups else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> AirflowScheduling:
    """The mark ``xdist_group`` would say the same, but pytest-xdist 3.8 does not read it under pytest 9.2."""
    return AirflowScheduling(config, log)
