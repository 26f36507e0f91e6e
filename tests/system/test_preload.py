"""Tasks of a real Airflow that start with torch imported."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from local_airflow import LocalAirflow

from tests.system.conftest import QUICK

DAGS = Path(__file__).parent / "preload_dags"
PSS_BAR_MB = 130
SETTINGS = {**QUICK, "AIRFLOW__HETERO__PRELOAD": "torch", "AIRFLOW__CORE__PARALLELISM": "4"}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    components = ("api-server", "scheduler", "dag-processor")
    with LocalAirflow(tmp_path_factory.mktemp("airflow"), DAGS, settings=SETTINGS, components=components) as made:
        yield made


def fork_server(airflow):
    children = psutil.Process(airflow.pid("scheduler")).children()
    (server,) = [child for child in children if "multiprocessing.forkserver" in " ".join(child.cmdline())]
    return server


def test_torch_costs_a_task_nothing_and_its_random_numbers_are_its_own(airflow):
    run_id = airflow.trigger("preloaded")
    assert airflow.wait_for_run("preloaded", run_id) == "success"
    seen = [airflow.xcom("preloaded", run_id, "look", number) for number in range(2)]
    assert [row["was_loaded"] for row in seen] == [True, True]
    assert max(row["pss_mb"] for row in seen) <= PSS_BAR_MB
    assert seen[0]["drawn"] != seen[1]["drawn"]
    assert airflow.xcom("preloaded", run_id, "plain") is True
    assert "libtorch" not in Path(f"/proc/{airflow.pid('scheduler')}/maps").read_text()


def test_tasks_go_on_after_the_fork_server_was_killed(airflow):
    before = fork_server(airflow)
    workers = [child.pid for child in before.children()]
    os.kill(before.pid, signal.SIGKILL)
    airflow.wait_until(lambda: not any(map(psutil.pid_exists, workers)), "its worker processes to end")
    run_id = airflow.trigger("preloaded")
    assert airflow.wait_for_run("preloaded", run_id) == "success"
    assert fork_server(airflow).pid != before.pid
    assert {task["try_number"] for task in airflow.tasks("preloaded", run_id)} == {1}
