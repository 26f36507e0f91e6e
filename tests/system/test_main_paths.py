"""What a user gets, in a real Airflow on SQLite with HeteroExecutor alone and the coordinator configured."""

import json
import re
import sqlite3
from contextlib import closing

import pytest

from tests.system.overlaps import overlaps

pytestmark = pytest.mark.main

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


def test_tasks_without_a_request_pass_straight_through_callbacks_included(airflow, features):
    run_id, tasks = features
    assert xcom(airflow, run_id, "plain") == "plain"
    assert tasks["plain", -1]["pool"] == "default_pool"
    airflow.wait_until((airflow.home / "called_back").exists, "the success callback")


def test_the_first_alternative_that_exists_and_fits_is_taken(airflow, features):
    use = xcom(airflow, features[0], "in_order")
    assert (use["alternative"], use["kind"], use["simulated"]) == (1, "npu", True)
    assert use["visible"] == ""


def test_each_kind_of_device_is_leased(airflow, features):
    kinds = [xcom(airflow, features[0], "kinds", index)["kind"] for index in range(5)]
    assert kinds == ["gpu", "npu", "tpu", "fpga", "cpu"]


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
    assert len(uses) == 13
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
    assert re.search(r"Device: .*\. The task waited [0-9.]+ s for it", text)
    assert "0.5 of a (cooperative) nvidia/h100-80gb (simulated)" in text


def test_each_view_of_the_page_answers(airflow, features):
    run_id, _ = features
    task = f"run_id={run_id}&task_id=half"
    views = ["summary", "map", "devices", "queue", "timeline", "usage", "openapi.json"]
    for view in [*views, f"placement/features?{task}", f"forecast/features?{task}"]:
        assert airflow.api("GET", f"{airflow.url}/hetero/page/{view}"), view
