"""What a user gets, in a real Airflow on SQLite with HeteroExecutor alone and the coordinator configured."""

import os
import sqlite3
import time
from contextlib import closing

import pytest

from tests.system.conftest import TASK_QUEUED_TIMEOUT_S
from tests.system.long_run import LongRun
from tests.system.overlaps import overlaps

GPUS = ["simulated-nvidia-h100-80gb-0", "simulated-nvidia-h100-80gb-1"]


@pytest.fixture(scope="module", autouse=True)
def held(airflow):
    """A task that holds both NPUs, a run that waits for them while other tests run, and since when it does."""
    first = LongRun(airflow, "npu:2")
    second = airflow.trigger("long", {"seconds": 1, "device": "npu:2"})
    yield first, second, time.monotonic()
    first.let_end()


def test_six_tasks_over_two_devices_never_overlap_on_one(airflow):
    run_id = airflow.trigger("exclusive")
    assert airflow.wait_for_run("exclusive", run_id) == "success"
    uses = [airflow.xcom("exclusive", run_id, "work", index) for index in range(6)]
    assert sorted({id_ for use in uses for id_ in use["ids"]}) == GPUS
    assert overlaps(uses) == []
    tokens = [use["token"] for use in uses]
    assert len(set(tokens)) == 6
    assert all(ti["try_number"] == 1 for ti in airflow.tasks("exclusive", run_id))


def events_of(airflow, dag_id, run_id):
    """Airflow's audit log of a run."""
    parameters = {"dag_id": dag_id, "run_id": run_id, "limit": 100}
    return airflow.api("GET", "/eventLogs", params=parameters)["event_logs"]


def test_a_request_that_nothing_here_can_ever_satisfy_is_refused_at_once_with_the_nearest(airflow):
    run_id = airflow.trigger("impossible")
    assert airflow.wait_for_run("impossible", run_id) == "failed"
    text = airflow.log_text("impossible", run_id, "refused")
    assert "No known worker can ever run this" in text
    assert "h100-80gb" in text
    assert "nowhere" in airflow.log_text("impossible", run_id, "bad_template")
    events = events_of(airflow, "impossible", run_id)
    explained = {event["task_id"]: event["extra"] for event in events if event["event"] == "hetero_airflow"}
    assert "wait_for_hardware" in explained["refused"]
    assert "nowhere" in explained["bad_template"]
    assert [event for event in events if event["event"] == "state mismatch"] == [], "nothing else changed the state"


def test_a_held_task_that_a_user_fails_leaves_the_queue(airflow):
    first = LongRun(airflow)
    second = airflow.trigger("long", {"seconds": 1})
    airflow.wait_until(lambda: airflow.tasks("long", second)[0]["state"] == "queued", "the second to be held")
    airflow.api("PATCH", f"/dags/long/dagRuns/{second}", json={"state": "failed"})
    first.let_end()
    assert first.wait() == "success"
    third = airflow.trigger("long", {"seconds": 1})
    assert airflow.wait_for_run("long", third) == "success"


def test_a_running_task_that_a_user_fails_is_stopped_and_its_devices_are_freed(airflow):
    first = LongRun(airflow)
    airflow.api("PATCH", f"/dags/long/dagRuns/{first.id}", json={"state": "failed"})
    second = airflow.trigger("long", {"seconds": 1})
    assert airflow.wait_for_run("long", second) == "success"
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)


def test_a_running_task_that_is_cleared_runs_again_and_never_beside_itself(airflow):
    run = LongRun(airflow)
    airflow.api(
        "POST", "/dags/long/clearTaskInstances", json={"dry_run": False, "dag_run_id": run.id, "only_failed": False}
    )
    airflow.wait_until(lambda: run.try_number() == 2, "the second try")
    run.let_end()
    assert run.wait() == "success"
    assert run.try_number() == 2
    with pytest.raises(ProcessLookupError):
        os.kill(run.pid, 0)
    query = (
        "select lease.granted_at, lease.ended_at from hetero_lease lease "
        "join hetero_request request on request.id = lease.request_id where request.run_id = ? order by lease.token"
    )
    with closing(sqlite3.connect(f"file:{airflow.home}/airflow.db?mode=ro", uri=True)) as database:
        (_, first_ended), (second_granted, _) = database.execute(query, (run.id,)).fetchall()
    assert first_ended <= second_granted


def test_torch_is_not_imported_by_the_scheduler(airflow):
    pid = airflow.pid("scheduler")
    with open(f"/proc/{pid}/maps") as maps:
        assert "libtorch" not in maps.read()


def test_a_task_whose_time_to_wait_is_over_fails(airflow):
    run = LongRun(airflow)
    impatient = airflow.trigger("impatient")
    assert airflow.wait_for_run("impatient", impatient) == "failed"
    assert "No device in time" in airflow.log_text("impatient", impatient, "impatient")
    run.let_end()
    assert run.wait() == "success"


def test_a_held_task_outlives_airflows_time_limits(airflow, held):
    """The task waits for longer than task_queued_timeout, after which its first token is invalid too."""
    first, second, since = held
    time.sleep(max(0.0, since + TASK_QUEUED_TIMEOUT_S + 10 - time.monotonic()))
    assert airflow.tasks("long", second)[0]["state"] == "queued"
    first.let_end()
    assert airflow.wait_for_run("long", second) == "success"
    assert [ti["try_number"] for ti in airflow.tasks("long", second)] == [1]
    uses = [airflow.xcom("long", run_id, "long") for run_id in (first.id, second)]
    assert overlaps(uses) == []
    events = {event["event"] for event in events_of(airflow, "long", second)}
    assert "success" in events
    assert not any("stuck" in event for event in events)
