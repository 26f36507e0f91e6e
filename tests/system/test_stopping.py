"""A scheduler that is told to stop: its tasks save or end, and go on after its restart with the same try.

`make bench-stop` does more rounds, and prints how long each took.
"""

import os
import signal
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from local_airflow import LocalAirflow, session_of

from tests.system.conftest import HERE, QUICK

GRACE_S = 10
ROUNDS = int(os.environ.get("STOP_ROUNDS", "2"))
STEPS = list(range(60))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    settings = QUICK | {"AIRFLOW__HETERO__GRACE_S": str(GRACE_S)}
    with LocalAirflow(
        tmp_path_factory.mktemp("stopping"),
        HERE / "stop_dags",
        simulated="nvidia/h100-80gb:4",
        settings=settings,
        components=["api-server", "scheduler", "dag-processor"],  # nothing here defers
    ) as airflow:
        yield airflow


def notes(airflow, name):
    path = airflow.home / f"{name}.notes"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def told(process):
    """What still runs; an empty text for a process that has ended."""
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.pid}, child of {process.ppid()}: {process.cmdline()}"
    return ""


def is_at_work(airflow):
    """Whether all four devices are in use: two tasks have done steps, and two hold one; and the plain task runs."""
    holding = sum(bool(notes(airflow, f"holds-{number}")) for number in range(6))
    has_steps = all(len(notes(airflow, f"saves-{number}")) > 3 for number in range(2))
    return has_steps and holding == 2 and notes(airflow, "plain")


@pytest.mark.timeout(900 * ROUNDS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_the_tasks_of_a_scheduler_that_stops_go_on_where_they_were(airflow, number):
    """The API server was stopped before, as by Ctrl-C on `airflow standalone`, or runs on."""
    is_server_there = number % 2 == 1
    stop = signal.SIGTERM if number % 4 in (1, 2) else signal.SIGINT
    for path in [*airflow.home.glob("*.notes"), airflow.home / "end"]:
        path.unlink(missing_ok=True)
    run_id = airflow.trigger("stopped")
    airflow.wait_until(lambda: is_at_work(airflow), "all devices to be in use")
    scheduler = airflow.pid("scheduler")
    processes = session_of(scheduler)
    if not is_server_there:
        airflow.kill("api-server")
    began = time.monotonic()
    os.killpg(scheduler, stop)  # as Ctrl-C does in the terminal of `airflow standalone`, which then sends SIGTERM
    os.kill(scheduler, signal.SIGTERM)
    airflow.wait_until(lambda: airflow.has_ended("scheduler"), "the scheduler to end", every_s=0.05)
    took_s = time.monotonic() - began
    left = [text for process in processes if (text := told(process))]
    steps_before = sum(len(notes(airflow, f"saves-{number}")) for number in range(2))
    (airflow.home / "end").touch()
    for component in ("scheduler",) if is_server_there else ("api-server", "scheduler"):
        airflow.launch(component)
    airflow.wait_until(airflow.is_healthy, "Airflow to answer")
    assert airflow.wait_for_run("stopped", run_id) == "success"
    tries = Counter((ti["task_id"], ti["try_number"]) for ti in airflow.tasks("stopped", run_id))
    print(
        f"{stop.name}, API server {'there' if is_server_there else 'away'}: ended after {took_s:.1f} s "
        f"with {steps_before} steps done; {len(left)} processes left"
    )
    assert tries == {("saves", 1): 2, ("holds", 1): 6, ("plain", 1): 1}
    assert [notes(airflow, f"saves-{number}") for number in range(2)] == [STEPS, STEPS], "no step is lost or done twice"
    assert [airflow.xcom("stopped", run_id, "saves", number) for number in range(2)] == [STEPS, STEPS]
    assert left == []
    airflow.wait_until_freed()
