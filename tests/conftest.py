"""What all tests share: a PostgreSQL server that the tests start, their order, and what is said at the end of a run."""

import gc
import multiprocessing.util
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import NullPool, create_engine
from sqlalchemy import text as sql

from tests import run_environment
from tests.effort import effort
from tests.lanes import AIRFLOWS, LaneScheduling, group_of, in_order
from tests.migrated_database import copy_migrated_database
from tests.postgres_server import running_postgres
from tests.warm_airflow import WarmAirflow

COMPUTED_S = pytest.StashKey[float]()
"""Seconds of computing of this process and its ended children, at the end of the last test."""
DESELECTED = pytest.StashKey["Counter[str]"]()
"""Who runs the tests that this run does not, and how many they are."""
LEFT_OVER = pytest.StashKey["list[str]"]()
"""Processes and temporary files that the run left behind."""
SCHEDULING = pytest.StashKey[LaneScheduling]()
RUNNERS = {
    "chaos": "`make chaos` runs them",
    "bench": "`make bench-…` runs them",
    "gpu": "no accelerator is here",
    "system": "`make system` runs them",
}
"""Mark → who runs its tests, the first that fits."""

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("tests", deadline=None, max_examples=effort(20, 100))
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def warm_airflow() -> None:
    """The Airflows of tests start as forks on a migrated database; `tests.warm_airflow` says what differs."""
    if module := sys.modules.get("local_airflow"):
        module.LocalAirflow.make_starter = WarmAirflow
        module.LocalAirflow.copy_migrated_database = staticmethod(copy_migrated_database)


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
            connection.execute(sql(f"CREATE DATABASE {name}"))
        return postgres_server.replace("/postgres?", f"/{name}?")

    return make


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now lives until the end; so no garbage collection has to visit it. It saves 5 % of the time."""
    session.config.stash[COMPUTED_S] = _computed_s()
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.stash[DESELECTED] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that boot an Airflow or have a long form, and bring those of a group together."""
    for item in items:
        if group_of(item.nodeid) in AIRFLOWS and not item.get_closest_marker("main"):
            item.add_marker("system")
        if item.get_closest_marker("hypothesis"):
            item.add_marker("long")
    items[:] = in_order(items)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Note who runs these tests."""
    for item in items:
        runners = (text for mark, text in RUNNERS.items() if item.get_closest_marker(mark))
        item.config.stash[DESELECTED][next(runners, "`make test` runs them")] += 1


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core; the first one boots Airflows."""
    return os.cpu_count() or 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LaneScheduling:
    """The mark ``xdist_group`` would say the same, but pytest-xdist 3.8 does not read it under pytest 9.2."""
    config.stash[SCHEDULING] = LaneScheduling(config, log)
    return config.stash[SCHEDULING]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process has counted; each collects all tests."""
    counted = getattr(node, "workeroutput", {}).get("deselected", {})
    node.config.stash[DESELECTED] |= Counter(counted)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over what was counted. The process that the others serve looks for what they left behind."""
    config = session.config
    multiprocessing.util._run_finalizers(None)  # they remove files of this process, as at its end
    if hasattr(config, "workeroutput"):
        config.workeroutput["deselected"] = dict(config.stash[DESELECTED])
        return
    config.stash[LEFT_OVER] = [f"the process {text}" for text in run_environment.processes()]
    config.stash[LEFT_OVER] += [f"the temporary file {name}" for name in run_environment.files()]
    if config.stash[LEFT_OVER] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus == pytest.ExitCode.OK:
        run_environment.remove_folder()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cpu`` and ``--minutes``."""
    parser.addoption("--cpu", action="store_true", help="print what each test file computed, in seconds")
    parser.addoption("--minutes", type=float, help="begin no group of tests after this time, and name those left out")


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
    """Print what did not run, a line for each reason, what was left behind, and the table of ``--cpu``."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = config.stash[DESELECTED] + Counter(str(each.longrepr[2]).removeprefix("Skipped: ") for each in skipped)
    _print_table(terminalreporter, "tests that did not run", reasons)
    if (scheduling := config.stash.get(SCHEDULING, None)) and scheduling.left_out:
        terminalreporter.line(f"No time was left for the groups {', '.join(scheduling.left_out)}.", yellow=True)
    for text in config.stash.get(LEFT_OVER, ()):
        terminalreporter.line(f"The tests left behind {text}.", red=True)
    if config.getoption("cpu"):
        _print_table(terminalreporter, "seconds of computing, by file", _computed_by_file(terminalreporter))


def _print_table(terminalreporter: pytest.TerminalReporter, title: str, table: Counter[str]) -> None:
    if table:
        terminalreporter.section(title)
    for text, number in table.most_common():
        terminalreporter.line(f"{round(number):6}  {text}")


def _computed_by_file(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if getattr(report, "when", None) == "teardown":
            seconds[report.nodeid.partition("::")[0]] += dict(report.user_properties).get("computed_s", 0.0)
    return seconds


def _computed_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
