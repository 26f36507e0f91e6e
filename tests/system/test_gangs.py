"""Two ranks of one training, each a task instance of its own, in a real Airflow with two simulated GPUs."""

import pytest

pytestmark = pytest.mark.postgres
STEPS = 8


@pytest.fixture
def airflow(airflow_on_postgres):
    """The Airflow whose group of tests has time left."""
    return airflow_on_postgres


def ranks(airflow, run_id):
    return {ti["map_index"]: ti for ti in airflow.tasks("gang", run_id)}


def is_over(airflow, run_id):
    """The return value of rank 0. Checks that no rank has used up a try."""
    assert airflow.wait_for_run("gang", run_id) == "success"
    assert {rank: ti["try_number"] for rank, ti in ranks(airflow, run_id).items()} == {0: 1, 1: 1}
    return airflow.xcom("gang", run_id, "train", 0)


def starts(airflow, run_id, rank=0):
    """How often the task of a rank has started torchrun."""
    return airflow.log_text("gang", run_id, "train", map_index=rank).count("Starting 1 processes")


def test_both_ranks_start_when_there_is_room_for_both_and_train_together_each_with_a_row_and_a_log(airflow):
    first = airflow.trigger("long", {"seconds": 600, "device": "h100"})
    airflow.wait_until(lambda: airflow.tasks("long", first)[0]["state"] == "running", "the other task to run")
    run_id = airflow.trigger("gang")
    airflow.wait_until(
        lambda: [ti["state"] for ti in ranks(airflow, run_id).values()] == ["queued", "queued"], "both to be held"
    )
    log = airflow.log_text
    text = "room for 1 at the same time"
    airflow.wait_until(lambda: text in log("gang", run_id, "train", map_index=0), "the log to say why it waits")
    assert airflow.tasks("long", first)[0]["state"] == "running"
    airflow.api("PATCH", f"/dags/long/dagRuns/{first}", json={"state": "failed"})
    result = is_over(airflow, run_id)
    assert (result["size"], result["steps"], result["sum"]) == (2, list(range(STEPS)), 2.0 * STEPS)
    for rank in (0, 1):
        worker = f"Worker {rank} of 2 of gang gang.train[0-1] ({run_id}) #1"
        assert worker in log("gang", run_id, "train", map_index=rank)
    end = airflow.tasks("long", first)[0]["end_date"]
    assert all(ti["start_date"] > end for ti in ranks(airflow, run_id).values())


def test_where_torchrun_dies_both_give_their_devices_back_and_go_on_together_from_the_last_checkpoint(airflow):
    """A rank that dies is restarted by torchrun: tests/operators/test_gang_training.py."""
    run_id = airflow.trigger("gang", {"dies": "torchrun"})
    result = is_over(airflow, run_id)
    assert result["steps"][-1] == STEPS - 1
    assert 0 < result["steps"][0] <= 4, "resumed from the last checkpoint that rank 0 published"
    assert result["sum"] == 2.0 * STEPS
    assert starts(airflow, run_id) == 2


def test_a_rank_that_is_cleared_takes_the_others_with_it(airflow):
    run_id = airflow.trigger("gang", {"steps": 200})  # it is over when it may hurry

    def have_begun():
        """Airflow treats the clear of a task that has just started as a failure, and waits for the retry."""
        begun = {ti["state"] for ti in ranks(airflow, run_id).values()} == {"running"}
        return begun and all(starts(airflow, run_id, rank) for rank in (0, 1))

    airflow.wait_until(have_begun, "both to run torchrun")
    airflow.api(
        "POST",
        "/dags/gang/clearTaskInstances",
        json={"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": [["train", 1]]},
    )
    airflow.wait_until(lambda: starts(airflow, run_id) == 2, "both to start again")
    folder = airflow.home / "gangs" / run_id.replace(":", "")
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "hurry").touch()
    assert airflow.wait_for_run("gang", run_id) == "success"
    assert {rank: ti["try_number"] for rank, ti in ranks(airflow, run_id).items()} == {0: 1, 1: 2}
    assert starts(airflow, run_id) == 2
