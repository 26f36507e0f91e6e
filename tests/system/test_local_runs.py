"""Local runs beside a running executor: neither takes the other's devices."""

import json
import subprocess
import sys

import pytest

from tests.system.overlaps import overlaps

HOLD = """
import json, sys, time
from hetero_airflow.runtime import local_lease
with local_lease("gpu:2", wait_timeout="2m") as lease:
    use = {"ids": lease.ids, "kind": "gpu", "milli": 1000, "start": time.time()}
    print("HELD", lease, flush=True)
    sys.stdin.read()
    print(json.dumps({**use, "end": time.time()}))
"""


@pytest.fixture
def local_run(airflow):
    """Starts a process that holds both GPUs of this machine until its standard input is closed."""
    processes = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            env=airflow.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def has(airflow, run_id, state):
    return state in {ti["state"] for ti in airflow.tasks("exclusive", run_id)}


def test_a_task_waits_for_the_devices_of_a_local_run_and_says_so(airflow, local_run):
    holder = local_run()
    assert holder.stdout.readline().startswith("HELD 2 × nvidia/h100-80gb (simulated) on")
    run_id = airflow.trigger("exclusive")

    def explanation():
        return airflow.run("hetero", "explain", "exclusive", run_id, "work", "--map-index", "0", check=False).stdout

    airflow.wait_until(lambda: "the local run of process" in explanation(), "the reason")
    assert not has(airflow, run_id, "running")
    use = json.loads(holder.communicate("")[0])
    assert airflow.wait_for_run("exclusive", run_id) == "success"
    assert overlaps([use, *(airflow.xcom("exclusive", run_id, "work", index) for index in range(6))]) == []


def test_a_local_run_waits_for_the_devices_of_tasks(airflow, local_run):
    run_id = airflow.trigger("exclusive")
    airflow.wait_until(lambda: has(airflow, run_id, "running"), "a task to run")
    holder = local_run()
    assert holder.stdout.readline().startswith("HELD 2 ×")
    use = json.loads(holder.communicate("")[0])
    assert airflow.wait_for_run("exclusive", run_id) == "success"
    assert overlaps([use, *(airflow.xcom("exclusive", run_id, "work", index) for index in range(6))]) == []
    assert all(ti["try_number"] == 1 for ti in airflow.tasks("exclusive", run_id))
