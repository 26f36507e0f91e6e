"""A real Airflow learns within a minute of steps which device model suits a task, and a restart forgets nothing.

The task is four times as fast on the K80. Its data sheet says that the V100 is six times as fast.
"""

import json

import pytest
from local_airflow import LocalAirflow

from tests.system.conftest import HERE, QUICK

V100, K80 = "nvidia/v100", "nvidia/k80"


@pytest.fixture
def airflow(tmp_path):
    with LocalAirflow(tmp_path, HERE / "speed_dags", simulated="nvidia/v100:1,nvidia/k80:1", settings=QUICK) as airflow:
        yield airflow


def finished_on(airflow, run_id):
    assert airflow.wait_for_run("unlike", run_id) == "success", airflow.log_text("unlike", run_id, "train")
    return airflow.xcom("unlike", run_id, "train")


def explained(airflow, run_id):
    """Device class → what `explain` says of its speed."""
    done = airflow.run("hetero", "explain", "unlike", run_id, "train", "--json")
    return {speed["device_class"]: speed for speed in json.loads(done.stdout)["speeds"]}


def test_the_next_run_goes_to_the_class_that_progress_shows_to_be_faster(airflow):
    end = airflow.home / "end"
    long_run = airflow.trigger("unlike", {"until": str(end)})
    store = airflow.store()
    airflow.wait_until(lambda: store.snapshot().leases, "the first run to start")
    other_run = airflow.trigger("unlike", {"until": str(end)})
    airflow.wait_until(lambda: len(store.snapshot().leases) == 2, "the second run to start")
    airflow.wait_until(lambda: len(store.speeds()[1]) == 2, "the speeds after a minute of steps")
    speeds = explained(airflow, other_run)
    print({name: (speed["steps"], speed["steps_per_s"], speed["deviation"]) for name, speed in speeds.items()})
    assert speeds[K80]["relative"] == 1.0
    assert speeds[V100]["relative"] == pytest.approx(0.25, rel=0.2)
    text = airflow.run("hetero", "explain", "unlike", other_run, "train").stdout
    print(text)
    assert "steps on this device" in " ".join(text.split())
    end.touch()
    assert {finished_on(airflow, long_run), finished_on(airflow, other_run)} == {"v100", "k80"}
    airflow.wait_until_freed()
    assert finished_on(airflow, airflow.trigger("unlike")) == "k80"

    airflow.wait_until_freed()
    airflow.kill("scheduler")
    airflow.launch("scheduler")
    airflow.wait_until(airflow.is_healthy, "the next scheduler")
    assert explained(airflow, other_run).keys() == {V100, K80}
    assert finished_on(airflow, airflow.trigger("unlike")) == "k80"
