"""The queue commands in a real Airflow: what becomes of the tasks and of their processes."""

import os

import pytest


def test_tasks_are_paused_bumped_and_cancelled_by_hand(airflow):
    first = airflow.trigger("long", {"seconds": 600})
    marker = airflow.home / f"{first.replace(':', '')}.1.pid"
    airflow.wait_until(lambda: marker.exists() and marker.read_text(), "the first to run")
    paused, second, third = (airflow.trigger("long", {"seconds": 1}) for _ in range(3))
    for run_id in (paused, second, third):
        airflow.wait_until(lambda run_id=run_id: is_queued(airflow, run_id), "a request in the queue")
    assert "is paused" in airflow.run("hetero", "pause", "long", "long", "--run-id", paused).stdout
    assert "the priority high" in airflow.run("hetero", "bump", "long", "long", "--run-id", third).stdout

    airflow.run("hetero", "cancel", "long", "long", "--run-id", second)
    airflow.run("hetero", "cancel", "long", "long", "--run-id", first)
    for run_id in (first, second):
        (instance,) = airflow.tasks("long", run_id)
        assert (instance["state"], instance["try_number"]) == ("failed", 1)
        assert "`airflow hetero cancel`" in instance["note"]
        assert airflow.wait_for_run("long", run_id) == "failed"
    assert airflow.wait_for_run("long", third) == "success"
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert "The task waits no longer" in airflow.log_text("long", second, "long")

    assert airflow.tasks("long", paused)[0]["state"] == "queued"
    airflow.run("hetero", "unpause", "long", "long", "--run-id", paused)
    assert airflow.wait_for_run("long", paused) == "success"


def is_queued(airflow, run_id):
    return any(request.run_id == run_id for request in airflow.store().snapshot().pending)
