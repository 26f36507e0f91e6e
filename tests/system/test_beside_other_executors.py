"""HeteroExecutor beside LocalExecutor on PostgreSQL, with no coordinator configured."""

import pytest

from tests.system.overlaps import overlaps

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def airflow(airflow_on_postgres):
    return airflow_on_postgres


@pytest.fixture(scope="module")
def exclusive(airflow):
    """A run of the DAG, over and well; its id."""
    run_id = airflow.trigger("exclusive")
    assert airflow.wait_for_run("exclusive", run_id) == "success"
    return run_id


def test_six_tasks_over_two_devices_never_overlap_on_one(airflow, exclusive):
    uses = [airflow.xcom("exclusive", exclusive, "work", index) for index in range(6)]
    assert len({id_ for use in uses for id_ in use["ids"]}) == 2
    assert overlaps(uses) == []


def test_device_tasks_choose_our_executor_and_others_the_default(airflow):
    run_id = airflow.trigger("features")
    assert airflow.wait_for_run("features", run_id) == "success"
    executors = {ti["task_id"]: ti["executor"] for ti in airflow.tasks("features", run_id)}
    assert executors["plain"] is None
    assert {name for task_id, name in executors.items() if task_id not in ("plain", "with_callback")} == {"devices"}


def test_without_a_coordinator_the_operator_binds_before_user_code(airflow, exclusive):
    use = airflow.xcom("exclusive", exclusive, "work", 0)
    assert use["visible"] == use["ids"][0]
    assert use["at_parse"] is None
    assert "bound by the operator" in airflow.log_text("exclusive", exclusive, "work", map_index=0)
