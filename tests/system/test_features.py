"""What a user gets, in a real Airflow on SQLite with HeteroExecutor alone and the coordinator configured."""

import json
import os
import sqlite3
import time
from contextlib import closing

import pytest

from tests.system.conftest import TASK_QUEUED_TIMEOUT_S
from tests.system.long_run import LongRun
from tests.system.overlaps import overlaps

GPUS = ["simulated-nvidia-h100-80gb-0", "simulated-nvidia-h100-80gb-1"]


@pytest.fixture(scope="module")
def features(airflow):
    run_id = airflow.trigger("features")
    state = airflow.wait_for_run("features", run_id)
    tasks = {(ti["task_id"], ti["map_index"]): ti for ti in airflow.tasks("features", run_id)}
    not_ok = {key: ti["state"] for key, ti in tasks.items() if ti["state"] != "success"}
    assert (state, not_ok) == ("success", {})
    return run_id, tasks


def xcom(airflow, run_id, task_id, map_index=-1):
    return airflow.xcom("features", run_id, task_id, map_index)


def test_six_tasks_over_two_devices_never_overlap_on_one(airflow):
    run_id = airflow.trigger("exclusive")
    assert airflow.wait_for_run("exclusive", run_id) == "success"
    uses = [airflow.xcom("exclusive", run_id, "work", index) for index in range(6)]
    assert sorted({id_ for use in uses for id_ in use["ids"]}) == GPUS
    assert overlaps(uses) == []
    tokens = [use["token"] for use in uses]
    assert len(set(tokens)) == 6
    assert all(ti["try_number"] == 1 for ti in airflow.tasks("exclusive", run_id))


def test_tasks_without_a_request_pass_straight_through_callbacks_included(airflow, features):
    run_id, tasks = features
    assert xcom(airflow, run_id, "plain") == "plain"
    assert tasks["plain", -1]["pool"] == "default_pool"
    airflow.wait_until((airflow.home / "called_back").exists, "the success callback")


def test_the_first_alternative_that_exists_and_fits_is_taken(airflow, features):
    use = xcom(airflow, features[0], "in_order")
    assert (use["alternative"], use["kind"], use["simulated"]) == (1, "npu", True)
    assert use["visible"] == ""


def test_a_set_lets_the_policy_choose(airflow, features):
    assert xcom(airflow, features[0], "any_of")["kind"] in ("gpu", "npu")


def test_a_share_is_part_of_one_device(airflow, features):
    use = xcom(airflow, features[0], "half")
    assert (use["milli"], len(use["ids"])) == (500, 1)


def test_cores_are_this_tasks_alone(airflow, features):
    use = xcom(airflow, features[0], "cores")
    assert (use["kind"], use["ids"], use["affinity"]) == ("cpu", ["cpu"], use["cores"])
    assert len(use["cores"]) == 1
    assert use["visible"] == ""


def test_the_coordinator_binds_before_the_dag_file_is_parsed(airflow, features):
    use = xcom(airflow, features[0], "half")
    assert use["at_parse"] == use["visible"] == use["ids"][0]


def test_a_device_can_be_a_template(airflow, features):
    assert xcom(airflow, features[0], "templated")["vendor"] == "ascend"


def test_mapped_instances_get_their_request_and_their_own_device(airflow, features):
    run_id, _ = features
    assert [xcom(airflow, run_id, "decorated", index)["x"] for index in range(2)] == [1, 2]
    assert xcom(airflow, run_id, "decorated", 0)["ids"][0] in GPUS
    assert xcom(airflow, run_id, "bash", 0).removeprefix("sees ") in GPUS
    assert xcom(airflow, run_id, "bash", 1) == "sees"


def test_a_deferred_task_comes_back_with_the_same_key_and_gets_a_device_again(airflow, features):
    """The end event of the first run must not fail the second run or free its devices."""
    run_id, tasks = features
    assert xcom(airflow, run_id, "deferring")["ids"][0] in GPUS
    assert tasks["deferring", -1]["try_number"] == 1


def test_no_two_tasks_of_all_these_overlapped(airflow, features):
    run_id, tasks = features
    uses = [
        xcom(airflow, run_id, *key)
        for key, ti in tasks.items()
        if ti["task_id"] not in ("plain", "with_callback", "bash")
    ]
    assert len(uses) == 8
    assert overlaps(uses) == []


def test_the_lease_is_on_record_in_the_task_state_store(airflow, features):
    with closing(sqlite3.connect(f"file:{airflow.home}/airflow.db?mode=ro", uri=True)) as database:
        rows = database.execute(
            "select value from task_state_store where key = 'hetero.lease' and task_id = 'half'"
        ).fetchall()
    assert [json.loads(json.loads(value) if value.startswith('"') else value)["share"] for (value,) in rows] == [0.5]


def test_device_tasks_choose_the_pool_for_devices(airflow, features):
    pool = airflow.api("GET", "/pools/hetero_devices")
    assert (pool["slots"], features[1]["half", -1]["pool"]) == (-1, "hetero_devices")


def test_the_task_log_shows_the_placement_and_the_run(airflow, features):
    text = airflow.log_text("features", features[0], "half")
    assert "Placed after" in text
    assert "0.5 of a (cooperative) nvidia/h100-80gb (simulated)" in text


def test_a_request_that_nothing_here_can_ever_satisfy_is_refused_at_once_with_the_nearest(airflow):
    run_id = airflow.trigger("impossible")
    assert airflow.wait_for_run("impossible", run_id) == "failed"
    text = airflow.log_text("impossible", run_id, "refused")
    assert "No known worker can ever run this" in text
    assert "h100-80gb" in text
    assert "nowhere" in airflow.log_text("impossible", run_id, "bad_template")


def test_a_held_task_outlives_airflows_time_limits(airflow):
    """The task waits for longer than task_queued_timeout, after which its first token is invalid too."""
    first = LongRun(airflow)
    second = airflow.trigger("long", {"seconds": 1})
    impatient = airflow.trigger("impatient")
    assert airflow.wait_for_run("impatient", impatient) == "failed"
    assert "No device in time" in airflow.log_text("impatient", impatient, "impatient")
    time.sleep(TASK_QUEUED_TIMEOUT_S + 10)
    first.let_end()
    assert airflow.wait_for_run("long", second) == "success"
    assert [ti["try_number"] for ti in airflow.tasks("long", second)] == [1]
    uses = [airflow.xcom("long", run_id, "long") for run_id in (first.id, second)]
    assert overlaps(uses) == []
    events = airflow.api("GET", f"/eventLogs?dag_id=long&run_id={second}")["event_logs"]
    assert [event for event in events if "stuck" in event["event"]] == []


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
