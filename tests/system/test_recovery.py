"""No work is lost by preemption, kills, clears and failures in a real Airflow. Also sensors."""

import json
import os
import re
import signal

import psutil
import pytest

STEPS = 400
"""So many steps take minutes, unless a test is over with what it does to the task: then they are quick."""


def start_saving(airflow, device="h100"):
    """Start a run of the DAG ``saving`` and wait for a checkpoint. Returns (run id, pid of its process)."""
    run_id = airflow.trigger("saving", {"steps": STEPS, "nap": 0.2, "device": device})
    airflow.wait_until(lambda: index(airflow, "saving", "saving", run_id)["entries"], "a checkpoint")
    return run_id, task(airflow, "saving", run_id)["pid"]


def index(airflow, dag_id, task_id, run_id):
    from hetero_airflow.checkpoints.place import checkpoint_path

    path = airflow.home / "checkpoints" / checkpoint_path(dag_id, task_id, run_id, -1) / "index.json"
    return json.loads(path.read_text()) if path.exists() else {"entries": []}


def task(airflow, dag_id, run_id, task_id=None):
    return next(ti for ti in airflow.tasks(dag_id, run_id) if task_id in (None, ti["task_id"]))


def audit(airflow, dag_id):
    logs = airflow.api("GET", "/eventLogs?limit=100&order_by=-id")["event_logs"]
    return [log["extra"] for log in logs if log["event"] == "hetero_airflow" and log["dag_id"] == dag_id]


def is_over(airflow, dag_id, run_id):
    (airflow.home / f"{run_id.replace(':', '')}.hurry").touch()
    assert airflow.wait_for_run(dag_id, run_id) == "success"
    ti = task(airflow, dag_id, run_id)
    return ti["try_number"], airflow.xcom(dag_id, run_id, ti["task_id"])


@pytest.mark.main
def test_an_urgent_task_gets_its_devices_and_the_other_goes_on_where_it_stood(airflow):
    run_id, _ = start_saving(airflow, "h100:2")
    urgent = airflow.trigger("urgent")
    assert airflow.wait_for_run("urgent", urgent) == "success"
    saved = index(airflow, "saving", "saving", run_id)["entries"][-1]["step"]
    try_number, result = is_over(airflow, "saving", run_id)
    assert (try_number, result["is_whole"], result["first"] > 0) == (1, True, True)
    assert result["first"] <= saved + 1
    log = airflow.log_text("saving", run_id, "saving")
    assert "Preempted: the task has stopped (stopped on request (assignment: " in log
    assert "a task of another DAG has the priority urgent, this task has low" in log
    assert f"Going on after step {result['first'] - 1} of {STEPS}" in log
    causes = [text for text in audit(airflow, "saving") if text.startswith("preempted: ")]
    assert causes
    for cause in causes:
        assert "a task of another DAG has the priority urgent, this task has" in cause
        assert "urgent." not in cause


@pytest.fixture(scope="module")
def deadlocked(airflow):
    """A run whose task takes its time to hang: the other tests run meanwhile, on other devices."""
    return airflow.trigger("deadlocking")


@pytest.mark.usefixtures("deadlocked")
def test_a_task_moves_off_a_device_that_is_drained(airflow):
    (worker,) = json.loads(airflow.run("hetero", "workers", "--json").stdout)
    run_id, _ = start_saving(airflow)
    (lease,) = airflow.store().request_history("saving", run_id, "saving").leases
    here = lease.claims[0].device_id
    device = f"{worker['id']}/{here}"
    airflow.run("hetero", "drain", device, "--move", "--reason", "a new fan")
    try:
        airflow.wait_until(
            lambda: len(airflow.store().request_history("saving", run_id, "saving").leases) == 2, "another device"
        )
        try_number, result = is_over(airflow, "saving", run_id)
    finally:
        airflow.run("hetero", "undrain", device)
    assert (try_number, result["is_whole"], result["first"] > 0) == (1, True, True)
    assert result["ids"] != [here]


def test_a_killed_task_goes_on_from_its_checkpoint_with_the_same_try(airflow):
    run_id, pid = start_saving(airflow)
    os.kill(pid, signal.SIGKILL)
    try_number, result = is_over(airflow, "saving", run_id)
    assert (try_number, result["is_whole"], result["first"] > 0) == (1, True, True)
    assert "requeued at once, for the 1st time of 5, without using a retry" in airflow.log_text(
        "saving", run_id, "saving"
    )


def test_a_task_whose_supervisor_is_to_end_saves_first_and_goes_on_with_the_same_try(airflow):
    """When a node is drained, the kubelet sends SIGTERM to the first process of the pod."""
    run_id, pid = start_saving(airflow)
    supervisor = psutil.Process(pid).ppid()
    os.kill(supervisor, signal.SIGTERM)
    airflow.wait_until(lambda: not psutil.pid_exists(pid), "the task to save and end")
    try_number, result = is_over(airflow, "saving", run_id)
    assert (try_number, result["is_whole"], result["first"] > 0) == (1, True, True)
    log = airflow.log_text("saving", run_id, "saving")
    assert "Its worker shuts down: the task gets a notice to save and end" in log
    assert f"Going on after step {result['first'] - 1} of {STEPS}" in log


@pytest.mark.parametrize(("dag_id", "goes_on"), [("saving", False), ("resuming", True)])
def test_a_cleared_task_starts_fresh_unless_it_is_to_go_on(airflow, dag_id, goes_on):
    run_id = airflow.trigger(dag_id, {"steps": 10, "nap": 0.01})
    assert is_over(airflow, dag_id, run_id)[1]["first"] == 0
    airflow.api("POST", f"/dags/{dag_id}/clearTaskInstances", json={
        "dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True,
    })  # fmt: skip
    airflow.wait_until(lambda: task(airflow, dag_id, run_id)["try_number"] == 2, "the second try")
    try_number, result = is_over(airflow, dag_id, run_id)
    assert (try_number, result["first"]) == (2, None if goes_on else 0)


def test_sensors_wait_for_checkpoints_and_devices_and_a_watcher_starts_a_dag(airflow):
    run_id = airflow.trigger("waiting")
    airflow.wait_until(
        lambda: task(airflow, "waiting", run_id, "no_room")["state"] == "failed", "the sensor to give up", 120
    )
    for task_id in ("halfway", "room", "train"):
        airflow.wait_until(
            lambda task_id=task_id: task(airflow, "waiting", run_id, task_id)["state"] == "success", task_id, 180
        )
    halfway = airflow.xcom("waiting", run_id, "halfway")
    assert halfway["step"] >= 19
    assert halfway["path"].startswith("waiting/train/")
    assert airflow.xcom("waiting", run_id, "room")["device_ids"]
    assert "No known worker can ever run this" in airflow.log_text("waiting", run_id, "no_room")

    def started():
        runs = airflow.api("GET", "/dags/watching/dagRuns")["dag_runs"]
        return [run for run in runs if run["run_type"] == "asset_triggered" and run["state"] == "success"]

    (first, *_) = airflow.wait_until(started, "the watcher to start its DAG")
    (extra,) = airflow.xcom("watching", first["dag_run_id"], "announced")[:1]
    assert "train" in json.dumps(extra)


def test_the_cause_of_a_failure_decides_what_comes_next(airflow):
    run_id = airflow.trigger("failing")
    assert airflow.wait_for_run("failing", run_id) == "failed"
    hopeless, hungry = (task(airflow, "failing", run_id, name) for name in ("no_cure", "wants_more"))
    assert (hopeless["state"], hopeless["try_number"]) == ("failed", 1)
    assert "fails at once" in airflow.log_text("failing", run_id, "no_cure")
    assert (hungry["state"], hungry["try_number"]) == ("success", 1)


def test_a_task_that_deadlocks_shows_where_and_goes_on_from_its_checkpoint_with_the_same_try(airflow, deadlocked):
    run_id = deadlocked
    try_number, result = is_over(airflow, "deadlocking", run_id)
    assert (try_number, result["is_whole"], result["first"] > 0) == (1, True, True)
    log = airflow.log_text("deadlocking", run_id, "deadlocking")
    stacks = log.partition("The task is idle: no step, no use of its devices or cores. Its stacks follow")[2]
    shown, after = stacks.split("The task hangs: it gets a notice to save and end")
    assert re.search(
        r"system_dags\.py\", line \d+ in wait_for_itself\n.*system_dags\.py\", line \d+ in deadlocking\n", shown
    )
    assert "The task did not save and end in time. It is stopped" in after
    assert "It hung (" in after
    assert "requeued at once, for the 1st time of 2, without using a retry" in after
    assert f"Going on after step {result['first'] - 1} of 10" in after
