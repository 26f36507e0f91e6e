"""kill -9 of a task, its supervisor and the scheduler: no device is leased twice or held for ever, no task is lost."""

import os
import signal

import psutil
import pytest

from tests.system.long_run import LongRun
from tests.system.overlaps import overlaps
from tests.system.scheduler_jobs import replace_scheduler


def goes_on_with_the_same_try(run):
    run.let_end()
    return run.wait() == "success" and run.try_number() == 1


def test_kill_9_of_a_task_process_frees_its_devices_and_costs_no_try(airflow):
    run = LongRun(airflow)
    os.kill(run.pid, signal.SIGKILL)
    assert goes_on_with_the_same_try(run)


def test_kill_9_of_the_supervisor_leaves_no_orphan_and_frees_the_devices(airflow):
    """The child only computes, so only PDEATHSIG ends it."""
    run = LongRun(airflow)
    os.kill(psutil.Process(run.pid).ppid(), signal.SIGKILL)
    airflow.wait_until(lambda: not psutil.pid_exists(run.pid), "the orphan to die")
    assert goes_on_with_the_same_try(run)


@pytest.mark.parametrize("fixture", [pytest.param("airflow", marks=pytest.mark.main), "airflow_on_postgres"])
def test_kill_9_of_the_scheduler_loses_nothing_and_leases_nothing_twice(request, fixture):
    """One task runs on both devices, one waits. A new scheduler takes over both."""
    airflow = request.getfixturevalue(fixture)
    running = LongRun(airflow)
    held = airflow.trigger("long", {"seconds": 1})
    airflow.wait_until(lambda: airflow.tasks("long", held)[0]["state"] == "queued", "the second to be held")
    replace_scheduler(airflow, "long", running.id, held)
    assert psutil.pid_exists(running.pid)
    assert goes_on_with_the_same_try(running)
    assert airflow.wait_for_run("long", held) == "success"
    assert [ti["try_number"] for ti in airflow.tasks("long", held)] == [1]
    assert overlaps([airflow.xcom("long", run_id, "long") for run_id in (running.id, held)]) == []


def test_the_scheduler_dies_and_then_its_running_task_too(airflow):
    run = LongRun(airflow)
    airflow.kill("scheduler")
    os.kill(psutil.Process(run.pid).ppid(), signal.SIGKILL)
    airflow.launch("scheduler")
    assert goes_on_with_the_same_try(run)
