"""Tasks of a real Airflow that start with torch imported."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from local_airflow import ColdAirflow, LocalAirflow

from tests.celery_fleet import running_fleet
from tests.fork_servers import fork_servers
from tests.system.conftest import QUICK

DAGS = Path(__file__).parent / "preload_dags"
PSS_BAR_MB = 130
PARALLELISM = 4
SETTINGS = {**QUICK, "AIRFLOW__HETERO__PRELOAD": "torch", "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM)}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    components = ("api-server", "scheduler", "dag-processor")
    with LocalAirflow(tmp_path_factory.mktemp("airflow"), DAGS, settings=SETTINGS, components=components) as made:
        yield made


def fork_server(airflow):
    """The fork server, once it has its worker processes."""

    def ready():
        return fork_servers(airflow.pid("scheduler"), PARALLELISM)

    (server,) = airflow.wait_until(ready, "the fork server to have its worker processes")
    return server


def test_torch_costs_a_task_nothing_and_its_random_numbers_are_its_own(airflow):
    fork_server(airflow)
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


def test_a_celery_worker_imports_torch_once(tmp_path, make_postgres_database, monkeypatch):
    monkeypatch.setattr(LocalAirflow, "make_starter", ColdAirflow)  # a warm one has imported Airflow's commands before
    with running_fleet(tmp_path, DAGS, make_postgres_database(), {"w1": ""}, SETTINGS) as fleet:
        fleet.add_plain("w0")
        run_id = fleet.airflow.trigger("preloaded")
        assert fleet.airflow.wait_for_run("preloaded", run_id) == "success"
        seen = [fleet.airflow.xcom("preloaded", run_id, "look", number) for number in range(2)]
        assert [row["was_loaded"] for row in seen] == [True, True]
        assert seen[0]["drawn"] != seen[1]["drawn"]
        assert fleet.airflow.xcom("preloaded", run_id, "plain") is True
        assert "Tasks start with torch imported." in fleet.log("w1")
