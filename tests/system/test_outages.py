"""The API server is away: tasks that wait are held, those that run go on, and what ends is reported afterwards."""

import os
import signal
import time

import pytest
from local_airflow import LocalAirflow

from tests.postgres_server import running_postgres
from tests.system.conftest import HERE, OUTAGE_S, QUICK, SIMULATED

IMPATIENT = {
    # an outage of seconds is to these what one of minutes is to the recommended settings
    "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "3",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "2",
    # an API server that is away refuses at once; one that has just started on a slow host needs this time to answer
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    home = tmp_path_factory.mktemp("outages")
    settings = QUICK | (IMPATIENT if OUTAGE_S < 60 else {})
    folder = HERE / "outage_dags"
    # with SQLite, Airflow's DAG processor may find the database locked for too long, and end
    with (
        running_postgres() as postgres,
        LocalAirflow(
            home,
            folder,
            simulated=SIMULATED,
            settings=settings,
            database=postgres.url,
            components=["api-server", "scheduler", "dag-processor"],  # nothing here defers
        ) as airflow,
    ):
        yield airflow


def starts(airflow, name):
    """The process ids with which a task started, oldest first."""
    path = airflow.home / f"{name}.starts"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def ends(airflow, dag_id, run_id):
    return {(ti["state"], ti["try_number"]) for ti in airflow.tasks(dag_id, run_id)}


def forget_starts(airflow):
    for path in airflow.home.glob("*.starts"):
        path.unlink()


@pytest.mark.timeout(OUTAGE_S + 900)
def test_an_outage_of_the_api_server_fails_no_task_and_uses_no_retry(airflow):
    first = airflow.trigger("during")
    assert airflow.wait_for_run("during", first) == "success"
    forget_starts(airflow)
    end = airflow.home / "end"
    before = airflow.trigger("before", {"until": str(end), "ends_s": 12})
    airflow.wait_until(lambda: all(starts(airflow, name) for name in ("through", "ends", "killed")), "all to run")
    airflow.kill("api-server")
    began = time.monotonic()
    airflow.run("dags", "trigger", "during", "--run-id", "during-outage")
    os.kill(starts(airflow, "killed")[0], signal.SIGKILL)
    time.sleep(max(0.0, began + OUTAGE_S - time.monotonic()))
    airflow.launch("api-server")
    airflow.wait_until(airflow.is_healthy, "the API server to answer")
    back = time.monotonic()
    end.touch()
    for dag_id, run_id in (("before", before), ("during", "during-outage")):
        assert airflow.wait_for_run(dag_id, run_id) == "success"
        assert ends(airflow, dag_id, run_id) == {("success", 1)}
    counts = {name: len(starts(airflow, name)) for name in ("through", "ends", "killed")}
    assert counts == {"through": 1, "ends": 1, "killed": 2}
    print(f"API server away for {back - began:.0f} s: all were over {time.monotonic() - back:.1f} s after it")
    assert airflow.xcom("before", before, "ends") == "ends"
    store = airflow.store()  # a task that came before the outage was known has no such reason
    histories = [store.request_history("during", "during-outage", "use", number) for number in range(4)]
    reasons = [str(decision["reason"]) for history in histories for decision in history.decisions]
    assert any("API server" in reason for reason in reasons), reasons


def test_a_scheduler_that_starts_during_an_outage_starts_no_task_before_its_end(airflow):
    forget_starts(airflow)
    airflow.kill("api-server")
    airflow.kill("scheduler")
    airflow.run("dags", "unpause", "during")
    airflow.run("dags", "trigger", "during", "--run-id", "after-restart")
    airflow.launch("scheduler")
    store = airflow.store()
    airflow.wait_until(lambda: store.request_history("during", "after-restart", "use", 0), "the tasks to wait")
    time.sleep(10)
    assert list(airflow.home.glob("*.starts")) == []
    assert store.snapshot().leases == ()
    airflow.launch("api-server")
    airflow.wait_until(airflow.is_healthy, "the API server to answer")
    assert airflow.wait_for_run("during", "after-restart") == "success"
    assert ends(airflow, "during", "after-restart") == {("success", 1)}
    assert [len(starts(airflow, f"{kind}-{number}")) for kind in ("during", "plain") for number in range(4)] == [1] * 8
