"""kill -9 of a task, its supervisor and the scheduler: no device is leased twice or held for ever, no task is lost."""

import os
import signal

import psutil
import pytest

from tests.system.overlaps import overlaps


def start_long(airflow, seconds):
    """Start a run of the DAG ``long`` and wait for its task. Returns (run id, pid of its process)."""
    run_id = airflow.trigger("long", {"seconds": seconds})
    marker = airflow.home / f"{run_id.replace(':', '')}.1.pid"
    airflow.wait_until(lambda: marker.exists() and marker.read_text(), "the task to run", 60)
    return run_id, int(marker.read_text())


def tries(airflow, run_id):
    return [ti["try_number"] for ti in airflow.tasks("long", run_id)]


def test_kill_9_of_a_task_process_frees_its_devices_and_costs_no_try(airflow):
    run_id, pid = start_long(airflow, 8)
    os.kill(pid, signal.SIGKILL)
    assert airflow.wait_for_run("long", run_id, 60) == "success"
    assert tries(airflow, run_id) == [1]


def test_kill_9_of_the_supervisor_leaves_no_orphan_and_frees_the_devices(airflow):
    """The child only computes, so only PDEATHSIG ends it."""
    run_id, pid = start_long(airflow, 8)
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    airflow.wait_until(lambda: not psutil.pid_exists(pid), "the orphan to die", 5)
    assert airflow.wait_for_run("long", run_id, 90) == "success"
    assert tries(airflow, run_id) == [1]


@pytest.mark.parametrize("fixture", ["airflow", "airflow_on_postgres"])
def test_kill_9_of_the_scheduler_loses_nothing_and_leases_nothing_twice(request, fixture):
    """One task runs on both devices, one waits. A new scheduler takes over both."""
    airflow = request.getfixturevalue(fixture)
    running, pid = start_long(airflow, 15)
    held = airflow.trigger("long", {"seconds": 1})
    airflow.wait_until(lambda: airflow.tasks("long", held)[0]["state"] == "queued", "the second to be held")
    airflow.kill("scheduler")
    assert psutil.pid_exists(pid)
    airflow.launch("scheduler")
    assert airflow.wait_for_run("long", running, 90) == "success"
    assert airflow.wait_for_run("long", held, 90) == "success"
    assert tries(airflow, running) + tries(airflow, held) == [1, 1]
    assert overlaps([airflow.xcom("long", run_id, "long") for run_id in (running, held)]) == []


def test_the_scheduler_dies_and_then_its_running_task_too(airflow):
    run_id, pid = start_long(airflow, 8)
    airflow.kill("scheduler")
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    airflow.launch("scheduler")
    assert airflow.wait_for_run("long", run_id, 120) == "success"
    assert tries(airflow, run_id) == [1]
