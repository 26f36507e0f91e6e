"""``airflow hetero doctor`` in a real Airflow, from a shell of its own."""

from pathlib import Path

import pytest

DAGS = Path(__file__).parent / "dags"

pytestmark = pytest.mark.main


def test_it_runs_a_task_says_what_it_saw_and_leaves_nothing(airflow):
    done = airflow.run("hetero", "doctor", "--device", "nvidia/h100-80gb")
    assert "  task success on " in done.stdout, done.stdout  # a short task may be over before a look sees it run
    assert "this lease: 1 × nvidia/h100-80gb (simulated)" in done.stdout
    assert "Its devices are bound by CUDA_VISIBLE_DEVICES=simulated-nvidia-h100-80gb-" in done.stdout
    assert "On its device, torch " in done.stdout
    assert "Device tasks work here" in done.stdout
    assert list(DAGS.rglob("*hetero_doctor*")) == []
    assert "hetero_doctor" not in airflow.run("dags", "list-import-errors").stdout
    assert "hetero_doctor" not in airflow.run("dags", "list").stdout


def test_a_device_that_nobody_can_request_is_refused_before_anything_is_written(airflow):
    done = airflow.run("hetero", "doctor", "--device", "gpuu", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("device='gpuu' can't be used; found an unknown device. Did you mean \"gpu\"?")


def test_a_device_that_no_worker_has_is_named(airflow):
    done = airflow.run("hetero", "doctor", "--device", "nvidia/b200", check=False)
    assert done.returncode == 1
    assert "task failed: " in done.stdout, done.stdout
    assert "b200" in done.stdout
    assert "The task did not succeed" in done.stdout
