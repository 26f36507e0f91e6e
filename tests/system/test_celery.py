"""Two Celery workers with agents, a real Redis and PostgreSQL: nothing is leased twice, nothing lost."""

import json
import signal
import time

import psutil
import pytest

from tests.celery_fleet import running_fleet
from tests.system.conftest import HERE, QUICK
from tests.system.overlaps import overlaps

# As soon as the others of `QUICK`, but what was sent is to be good for longer than a message waits at most.
SETTINGS = {**QUICK, "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60"}
WORKERS = {"w1": "nvidia/h100-80gb:2,ascend/910b:2", "w2": "nvidia/h100-80gb:2"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, make_postgres_database):
    home = tmp_path_factory.mktemp("fleet")
    with running_fleet(home, HERE / "fleet_dags", make_postgres_database(), WORKERS, SETTINGS) as fleet:
        fleet.add_plain("w0")
        yield fleet


def notes(fleet, name, what="step"):
    path = fleet.airflow.home / "notes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["name"] == name and line["what"] == what]


def run(fleet, dag_id, conf=None, timeout_s=120):
    run_id = fleet.airflow.trigger(dag_id, conf)
    assert fleet.airflow.wait_for_run(dag_id, run_id, timeout_s) == "success"
    return run_id


def tries(fleet, dag_id, run_id):
    return [ti["try_number"] for ti in fleet.airflow.tasks(dag_id, run_id)]


def start_training(fleet, name, steps=60):
    """A training that has taken some steps; its run."""
    run_id = fleet.airflow.trigger("train", {"name": name, "steps": steps})

    def is_under_way():
        assert fleet.airflow.tasks("train", run_id)[0]["state"] != "failed", fleet.airflow.log_text(
            "train", run_id, "train_on"
        )
        return len(notes(fleet, name)) >= 6

    fleet.airflow.wait_until(is_under_way, "the training to step", 90)
    return run_id


def finish(fleet, name, run_id, steps):
    """Until it is over; it has done each step, used up no retry and leased nothing twice."""
    assert fleet.airflow.wait_for_run("train", run_id, 180) == "success"
    assert {line["step"] for line in notes(fleet, name)} == set(range(steps))
    assert tries(fleet, "train", run_id) == [1]


def test_tasks_spread_over_the_workers_and_none_shares_a_device(fleet):
    run_id = run(fleet, "spread")
    uses = [fleet.airflow.xcom("spread", run_id, "use", number) for number in range(8)]
    assert {use["worker"] for use in uses} == {"w1", "w2"}
    assert overlaps(uses) == []
    assert all(use["visible"] == use["at_parse"] != "" for use in uses), "bound after the DAG file was parsed"


def test_a_task_goes_where_its_devices_are_and_a_plain_one_anywhere(fleet):
    run_id = run(fleet, "kinds")
    assert fleet.airflow.xcom("kinds", run_id, "npu")["worker"] == "w1"
    assert fleet.airflow.xcom("kinds", run_id, "bash") == "0,1"
    assert fleet.airflow.xcom("kinds", run_id, "plain") == "plain"


def test_kill_9_of_the_scheduler_leaves_running_tasks_alone(fleet):
    run_id = start_training(fleet, "adopted", 40)
    fleet.airflow.kill("scheduler")
    fleet.airflow.launch("scheduler")
    finish(fleet, "adopted", run_id, 40)
    assert len(notes(fleet, "adopted", "start")) == 1, "it was started again"


def test_an_api_server_that_is_away_loses_no_task_and_no_worker(fleet):
    run_id = start_training(fleet, "unheard", 80)
    fleet.airflow.kill("api-server")
    time.sleep(20)
    fleet.airflow.launch("api-server")
    fleet.airflow.wait_until(fleet.airflow.is_healthy, "the API server to answer", 90)
    finish(fleet, "unheard", run_id, 80)
    assert len(notes(fleet, "unheard", "start")) == 1, "it was started again"


def test_redis_that_is_away_loses_nothing(fleet):
    run_id = start_training(fleet, "brokerless", 40)
    fleet.redis.kill()
    later = fleet.airflow.trigger("long", {"seconds": 1})
    time.sleep(5)
    fleet.redis.start()
    finish(fleet, "brokerless", run_id, 40)
    assert fleet.airflow.wait_for_run("long", later, 120) == "success"
    assert tries(fleet, "long", later) == [1]


def test_kill_9_of_a_task_on_a_worker_goes_on_from_its_checkpoint(fleet):
    run_id = start_training(fleet, "killed", 30)
    psutil.Process(notes(fleet, "killed")[-1]["pid"]).kill()
    finish(fleet, "killed", run_id, 30)


def test_a_worker_that_is_killed_is_found_and_its_task_runs_elsewhere(fleet):
    run_id = start_training(fleet, "moved", 60)
    first = notes(fleet, "moved")[-1]
    at = fleet.kill_worker(first["worker"])
    fleet.airflow.wait_until(lambda: len(notes(fleet, "moved", "start")) > 1, "it to run elsewhere", 60)
    second = notes(fleet, "moved", "start")[1]
    assert second["worker"] != first["worker"]
    elsewhere_s = second["at"] - at
    print(f"worker killed: running elsewhere after {elsewhere_s:.1f} s")
    assert elsewhere_s <= 30
    finish(fleet, "moved", run_id, 60)
    fleet.restart_worker(first["worker"])
    fleet.wait_for(first["worker"])


def test_a_worker_that_is_cut_off_comes_back_only_without_its_old_task(fleet):
    """Its agent and its tasks freeze: nobody hears of them; then they wake up, long after the task went elsewhere."""
    run_id = start_training(fleet, "cut", 80)
    first = notes(fleet, "cut")[-1]
    frozen = fleet.freeze_worker(first["worker"])
    at = time.time()
    fleet.airflow.wait_until(lambda: len(notes(fleet, "cut", "start")) > 1, "it to run elsewhere", 60)
    second = notes(fleet, "cut", "start")[1]
    assert second["worker"] != first["worker"]
    assert second["token"] > first["token"]
    assert second["at"] - at <= 30
    for process in frozen:
        process.resume()
    finish(fleet, "cut", run_id, 80)
    stale = [line for line in notes(fleet, "cut") if line["token"] == first["token"] and line["at"] > second["at"] + 15]
    assert stale == [], "the old process went on for longer than its worker needs to find out"
    fleet.wait_for(first["worker"])


def test_drain_on_sigterm_lets_the_task_finish(fleet):
    run_id = fleet.airflow.trigger("long", {"seconds": 12})
    fleet.airflow.wait_until(lambda: notes(fleet, "long", "start")[-1:], "the task to run", 60)
    worker = notes(fleet, "long", "start")[-1]["worker"]
    fleet.process(f"agent-{worker}").send_signal(signal.SIGTERM)
    assert fleet.airflow.wait_for_run("long", run_id, 60) == "success"
    other = run(fleet, "long", {"seconds": 1})
    assert fleet.airflow.xcom("long", other, "long")["worker"] != worker
    fleet.restart_worker(worker)
    fleet.wait_for(worker)
