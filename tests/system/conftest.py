"""A real Airflow for the tests of this folder."""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from local_airflow import LocalAirflow
from sqlalchemy import NullPool, create_engine

from hetero_airflow.runtime.scratch_folder import LOCK, PREFIX
from tests import run_environment
from tests.lanes import group_of
from tests.system.scheduler_jobs import newest_scheduler
from tests.worker_fleet import own_lease_folder

HERE = Path(__file__).parent
collect_ignore = [
    "fleet_dags",
    "preload_dags",
    "speed_dags",
    "dags/hostile_dags.py",
]  # they import each other, as Airflow's folder of DAGs allows
SIMULATED = "nvidia/h100-80gb:2,ascend/910b:2,google/v5e,xilinx/u250"
"""A kind of device each; two tests need two of one."""
TASK_QUEUED_TIMEOUT_S = 30
QUICK = {
    # short times, so that tests see within seconds what an installation sees within minutes
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "6",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": str(TASK_QUEUED_TIMEOUT_S),
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "2",
    # the files do not change, and each look at them takes computing time from the tests
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}

BOARD = """
import os
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.model.device import NODE_KEY, Device

def probe():
    facts = {"vendor": "acme", "kind": "board", "model": "board", "index": 0, "memory_bytes": 2**30}
    return ProbeResult((Device(id="board-0", **facts, details={NODE_KEY: os.environ["BOARD"]}),))
"""
"""The probe of a device whose node is a file. No simulated device has a node."""

OUTAGE_S = float(os.environ.get("OUTAGE_S", "25"))
"""How long the API server is away in a test; more by hand, for the figures."""

_RUNNING = []
"""The shared Airflows that run. An idle one still takes a tenth of a core from the tests that follow."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Stop the shared Airflow after the last test of its group, so that no two run at once."""
    if nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid):
        while _RUNNING:
            _RUNNING.pop().stop()
        _remove_folders_of_killed_tasks()


def _remove_folders_of_killed_tasks():
    """Remove their folders for checkpoints. The next process would do it, a minute later at the earliest."""
    for lock in run_environment.run_folder().glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), lock.open() as file:  # locked, or removed meanwhile
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """The node of a device that a probe of another package finds; the package lies beside it."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "board.py").write_text(BOARD)
    info = folder / "board-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: board\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hetero_airflow.probes]\nboard = board:probe\n")
    (folder / "node").touch()
    return folder / "node"


@pytest.fixture(scope="session")
def airflow(tmp_path_factory, board):
    """Airflow on SQLite with HeteroExecutor alone, two simulated GPUs, two simulated NPUs, and a board with a node."""
    home = tmp_path_factory.mktemp("airflow")
    settings = {
        **QUICK,
        **own_lease_folder(home),
        "AIRFLOW__HETERO__HANG_TIMEOUT_S": "10",
        "AIRFLOW__HETERO__GRACE_S": "10",
        "AIRFLOW__HETERO__MIN_RUN_S": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(board.parent), os.environ.get("PYTHONPATH")))),
        "BOARD": str(board),
    }
    with LocalAirflow(home, HERE / "dags", simulated=SIMULATED, settings=settings) as airflow:
        _RUNNING.append(airflow)
        yield airflow


@pytest.fixture(scope="session")
def airflow_on_postgres(tmp_path_factory, make_postgres_database):
    """Airflow on PostgreSQL with HeteroExecutor beside LocalExecutor, no coordinator, and the policy fifo."""
    home = tmp_path_factory.mktemp("airflow_on_postgres")
    settings = {
        **QUICK,
        **own_lease_folder(home),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor,devices:hetero_airflow.executor.HeteroExecutor",
        "AIRFLOW__SDK__COORDINATORS": "{}",
        "AIRFLOW__SDK__QUEUE_TO_COORDINATOR": "{}",
        "AIRFLOW__HETERO__POLICY": "fifo",
    }
    database = make_postgres_database()
    with LocalAirflow(home, HERE / "dags", simulated=SIMULATED, settings=settings, database=database) as airflow:
        _RUNNING.append(airflow)
        yield airflow


@pytest.fixture
def two_schedulers(fleet):
    """The job ids of the scheduler that is there anyhow, and of ``scheduler-2``, which is not there afterwards."""
    engine = create_engine(fleet.airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
    first = newest_scheduler(engine)
    fleet.airflow.launch("scheduler-2", "scheduler")
    try:
        fleet.airflow.wait_until(lambda: newest_scheduler(engine) > first, "the second scheduler to begin")
        yield engine, first, newest_scheduler(engine)
    finally:
        with suppress(KeyError):
            fleet.airflow.kill("scheduler-2")
