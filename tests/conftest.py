"""What all tests share: a PostgreSQL server that the tests start, their order, and what they cost (``--cpu``)."""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
from collections import Counter
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

from tests.lanes import LaneScheduling, in_order
from tests.postgres_server import running_postgres
from tests.warm_airflow import WarmAirflow

COMPUTED_S = pytest.StashKey[float]()
"""Seconds of computing of this process and its ended children, at the end of the last test."""

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


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now lives until the end; so no garbage collection has to visit it. It saves 5 % of the time."""
    session.config.stash[COMPUTED_S] = _computed_s()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the tests of a group together, also where one process runs all."""
    items[:] = in_order(items)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core; the first one boots Airflows."""
    return os.cpu_count() or 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LaneScheduling:
    """The mark ``xdist_group`` would say the same, but pytest-xdist 3.8 does not read it under pytest 9.2."""
    return LaneScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cpu``."""
    parser.addoption("--cpu", action="store_true", help="print what each test file computed, in seconds")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """Add to a test's last report what was computed since that of the test before.

    Processes that the test started count once they have ended.
    """
    report = yield
    if report.when == "teardown":
        report.user_properties.append(("computed_s", _computed_s() - item.config.stash[COMPUTED_S]))
        item.config.stash[COMPUTED_S] = _computed_s()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what did not run, a line for each reason, and the table of ``--cpu``."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("tests that did not run")
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number:6}  {reason}")
    if config.getoption("cpu"):
        terminalreporter.section("seconds of computing, by file")
        for path, computed_s in _computed_by_file(terminalreporter).most_common():
            terminalreporter.line(f"{computed_s:8.1f}  {path}")


def _computed_by_file(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if getattr(report, "when", None) == "teardown":
            seconds[report.nodeid.partition("::")[0]] += dict(report.user_properties).get("computed_s", 0.0)
    return seconds


def _computed_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
