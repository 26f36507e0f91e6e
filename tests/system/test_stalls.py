"""A scheduler that stalls for longer than its health threshold takes itself for dead: it resets none of its tasks.

So does the next one, if it dies. A task without a device that loses its supervisor then runs again with the same try.
"""

import os
import signal
import time

import psutil
import pytest
from sqlalchemy import NullPool, create_engine, text

from tests.system.conftest import QUICK
from tests.system.scheduler_jobs import replace_scheduler

STALL_S = 2 * float(QUICK["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD"])
NAMES = ("plain", "device")


def offers_itself_its_tasks_after_a_stall(airflow):
    """Stop the scheduler's main process for a while. Whether it marks its own job as failed afterwards.

    It does not if it was stopped in the middle of that check.
    """
    log, pid = airflow.home / "scheduler.log", airflow.pid("scheduler")
    os.kill(pid, signal.SIGSTOP)
    try:
        length = log.stat().st_size
        time.sleep(STALL_S)
    finally:
        os.kill(pid, signal.SIGCONT)

    def lines():
        return log.read_bytes()[length:].decode(errors="replace")

    airflow.wait_until(lambda: lines().count("Adopting or resetting orphaned tasks") >= 2, "the checks after the stall")
    return "Marked 1 SchedulerJob instances as failed" in lines()


def starts(path):
    return {name: len(path.with_name(f"{path.name}.{name}.starts").read_text().split()) for name in NAMES}


def archived_tries(airflow, run_id):
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
    query = text("SELECT task_id, try_number, state FROM task_instance_history WHERE run_id = :run_id")
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query, {"run_id": run_id})]


@pytest.fixture
def short_heartbeats(airflow):
    """The schedulers that start meanwhile miss the heartbeat of a task after some seconds."""
    timeout, interval = (
        f"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_{name}" for name in ("TIMEOUT", "TIMEOUT_DETECTION_INTERVAL")
    )
    airflow.environment |= {timeout: "15", interval: "2"}
    yield
    for name in (timeout, interval):
        del airflow.environment[name]
    airflow.kill("scheduler")
    airflow.launch("scheduler")


def test_a_task_without_a_device_that_loses_its_scheduler_and_its_supervisor_uses_no_try(airflow, short_heartbeats):
    end = airflow.home / "end-of-losses"
    run_id = airflow.trigger("stalled", {"until": str(end)})

    def plain():
        (task,) = (task for task in airflow.tasks("stalled", run_id) if task["task_id"] == "plain")
        return task

    airflow.wait_until(lambda: plain()["state"] == "running", "it to run")
    pid = plain()["pid"]
    replace_scheduler(airflow, "stalled", run_id)
    assert (plain()["state"], plain()["pid"]) == ("running", pid)
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    airflow.wait_until(lambda: starts(end)["plain"] == 2, "it to run again")
    end.touch()
    assert airflow.wait_for_run("stalled", run_id) == "success"
    assert (plain()["try_number"], archived_tries(airflow, run_id)) == (1, [])


def test_a_scheduler_that_stalled_keeps_the_tasks_that_it_runs(airflow):
    end = airflow.home / "end-of-stall"
    run_id = airflow.trigger("stalled", {"until": str(end)})

    def states():
        return {(ti["task_id"], ti["state"], ti["try_number"]) for ti in airflow.tasks("stalled", run_id)}

    def all_are(state):
        return states() == {(name, state, 1) for name in NAMES}

    airflow.wait_until(lambda: all_are("running"), "both tasks to run")
    assert any(offers_itself_its_tasks_after_a_stall(airflow) for _ in range(3))
    end.touch()
    assert airflow.wait_for_run("stalled", run_id) == "success"
    assert (archived_tries(airflow, run_id), starts(end)) == ([], {"plain": 1, "device": 1})
    assert all_are("success")
