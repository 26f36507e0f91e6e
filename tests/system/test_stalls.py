"""A scheduler that stalls for longer than its health threshold takes itself for dead: it resets none of its tasks."""

import os
import signal
import time

from sqlalchemy import NullPool, create_engine, text

from tests.system.conftest import QUICK

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
