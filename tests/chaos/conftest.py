"""One Airflow for all faults of a session; what to try comes from the environment that `make chaos` sets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_airflow import LocalAirflow

from tests.chaos.catalogue import FAULTS
from tests.chaos.scene import Scene
from tests.chaos.table import Table

HERE = Path(__file__).parent
BACKEND = os.environ.get("CHAOS_BACKEND") or "postgres"
SEEDS = [int(seed) for seed in (os.environ.get("CHAOS_SEEDS") or "0").split()]
NAMES = os.environ.get("CHAOS_FAULTS", "").split() or list(FAULTS)

SETTINGS = {
    "AIRFLOW__HETERO__POLICY": "priority",
    "AIRFLOW__HETERO__MIN_RUN_S": "1",
    "AIRFLOW__HETERO__GRACE_S": "10",
    "AIRFLOW__HETERO__HANG_TIMEOUT_S": "10",
    # what a session of faults loses is more than a task loses in its life
    "AIRFLOW__HETERO__RECOVERY_RULES": '{"lost_worker": {"times": null}, "unknown": {"action": "retry"}}',
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "100",
}
SIMULATED = "nvidia/h100-80gb:2,ascend/910b:4"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "chaos_airflow" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.chaos)


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """What was measured; printed at the end."""
    path = os.environ.get("CHAOS_TABLE")
    table = Table(Path(path) if path else None)
    yield table
    table.print()


@pytest.fixture(scope="session")
def chaos_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Airflow on the chosen database, the scene of no fault yet."""
    home = tmp_path_factory.mktemp("chaos")
    database = f"sqlite:///{home}/airflow.db"
    airflow = LocalAirflow(home, HERE / "dags", simulated=SIMULATED, settings=SETTINGS, database=database)
    with airflow:
        scene = Scene(airflow, BACKEND, 0, "none", database)
        for _ in range(2):  # the first one warms up
            training = scene.train(steps=1)
            began = time.time()
            training.wait_for_step(0)
            scene.plain_start_s = training.done()[0]["at"] - began
            training.finish()
        yield scene
