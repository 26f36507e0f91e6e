"""Device arguments that are templates, in a real Airflow."""

import threading
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx

from tests.system.dags.hostile import HOSTILE


@contextmanager
def heartbeat_ages(airflow):
    """The age of the scheduler's heartbeat in seconds, every tenth of a second."""
    ages, is_over = [], threading.Event()

    def watch():
        while not is_over.wait(0.1):
            scheduler = httpx.get(f"{airflow.url}/api/v2/monitor/health", timeout=30).json()["scheduler"]
            beat = datetime.fromisoformat(scheduler["latest_scheduler_heartbeat"])
            ages.append((datetime.now(UTC) - beat).total_seconds())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield ages
    finally:
        is_over.set()
        thread.join()


def test_hostile_templates_fail_alone_and_leave_the_schedulers_heartbeat_as_it_was(airflow):
    airflow.wait_for_run("exclusive", airflow.trigger("exclusive"))  # costs of the first run only
    with heartbeat_ages(airflow) as normal:
        assert airflow.wait_for_run("exclusive", airflow.trigger("exclusive")) == "success"
    with heartbeat_ages(airflow) as beside:
        hostile = airflow.trigger("hostile")
        run_id = airflow.trigger("exclusive")
        assert airflow.wait_for_run("exclusive", run_id) == "success"
        assert airflow.wait_for_run("hostile", hostile) == "failed"
    print(f"oldest heartbeat: {max(normal):.2f} s alone, {max(beside):.2f} s beside {len(HOSTILE)} hostile templates")
    assert {ti["task_id"]: ti["state"] for ti in airflow.tasks("hostile", hostile)} == dict.fromkeys(HOSTILE, "failed")
    for task_id in HOSTILE:
        assert "found a template that" in airflow.log_text("hostile", hostile, task_id)
    assert max(beside) <= max(2 * max(normal), 5), "5 s: a machine may be busy"
