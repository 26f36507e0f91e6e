"""Tests for every engine that has workers of its own: no device is leased twice, and no task is lost.

A test module inherits the tests and provides the fixture `fleet`: worker w1 with two GPUs and two NPUs, worker w2 with
two GPUs, and a worker for the queue of tasks without a device.
"""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.system.conftest import OUTAGE_S
from tests.system.fleet_runs import (
    STEPS,
    finish,
    leases,
    let_hurry,
    newest_checkpoint,
    notes,
    rows,
    run,
    start_training,
    tries,
)
from tests.system.overlaps import overlaps
from tests.system.scheduler_jobs import replace_scheduler

WORKERS = {"w1": "nvidia/h100-80gb:2,ascend/910b:2", "w2": "nvidia/h100-80gb:2"}


def cut_off_and_wake_up(fleet, name):
    """A worker's agent and tasks freeze and send nothing. They wake up when the task runs elsewhere."""
    run_id = start_training(fleet, name)
    first = notes(fleet, name)[-1]
    frozen = fleet.freeze_worker(first["worker"])
    fleet.airflow.wait_until(lambda: len(notes(fleet, name, "start")) > 1, "it to run elsewhere")
    second = notes(fleet, name, "start")[1]
    assert second["worker"] != first["worker"]
    assert second["token"] > first["token"]
    for process in frozen:
        process.resume()
    fleet.airflow.wait_until(lambda: not psutil.pid_exists(first["pid"]), "the worker to end the old process")
    last = [line["step"] for line in notes(fleet, name) if line["token"] == first["token"]][-1]
    assert last < STEPS - 1, "the old process went on until its own end"
    finish(fleet, name, run_id)
    fleet.wait_for(first["worker"])


def gang_begins(fleet, time_number, first_step):
    """Wait until both ranks have started so many times and taken some steps. Returns what each wrote at its start."""

    def steps_of(start):
        lines = notes(fleet, "gang")
        return [line["step"] for line in lines if (line["rank"], line["token"]) == (start["rank"], start["token"])]

    def have_stepped():
        starts = notes(fleet, "gang", "start")
        return len(starts) == 2 * time_number and all(len(steps_of(start)) >= 6 for start in starts[-2:])

    fleet.airflow.wait_until(have_stepped, "both ranks to step")
    begun = {start["rank"]: start for start in notes(fleet, "gang", "start")[-2:]}
    assert {rank: start["size"] for rank, start in begun.items()} == {0: 2, 1: 2}
    assert {start["worker"] for start in begun.values()} == {"w1", "w2"}
    firsts = {rank: steps_of(start)[0] for rank, start in begun.items()}
    assert firsts == {0: first_step, 1: first_step}, f"both go on after the last checkpoint, not at {firsts}"
    return begun


class FleetContract:
    """The tests."""

    def test_tasks_spread_over_the_workers_and_none_shares_a_device(self, fleet):
        run_id = run(fleet, "spread")
        uses = [fleet.airflow.xcom("spread", run_id, "use", number) for number in range(8)]
        assert {use["worker"] for use in uses} == {"w1", "w2"}
        assert overlaps(uses) == []
        assert all(use["visible"] == use["at_parse"] != "" for use in uses), "bound after the DAG file was parsed"

    def test_a_task_goes_where_its_devices_are_and_a_plain_one_anywhere(self, fleet):
        run_id = run(fleet, "kinds")
        assert fleet.airflow.xcom("kinds", run_id, "npu")["worker"] == "w1"
        assert fleet.airflow.xcom("kinds", run_id, "bash") == "0,1"
        assert fleet.airflow.xcom("kinds", run_id, "plain") == "plain"

    def test_the_example_of_the_readme_runs_here_unchanged(self, fleet):
        run_id = run(fleet, "retrain_digits", timeout_s=240)
        assert fleet.airflow.xcom("retrain_digits", run_id, "evaluate") > 0.95
        assert Path(fleet.airflow.xcom("retrain_digits", run_id, "publish")).is_file()

    def test_kill_9_of_the_scheduler_leaves_running_tasks_alone(self, fleet):
        run_id = start_training(fleet, "adopted")
        replace_scheduler(fleet.airflow, "train", run_id)
        finish(fleet, "adopted", run_id)
        assert len(notes(fleet, "adopted", "start")) == 1, "it was started again"

    @pytest.mark.timeout(OUTAGE_S + 900)
    def test_an_api_server_that_is_away_loses_no_task_and_no_worker(self, fleet):
        run_id = start_training(fleet, "in_outage")
        fleet.airflow.kill("api-server")
        at = time.monotonic()
        fleet.airflow.run("dags", "unpause", "spread")
        fleet.airflow.run("dags", "trigger", "spread", "--run-id", "in_outage")
        time.sleep(max(0.0, at + OUTAGE_S - time.monotonic()))
        fleet.airflow.launch("api-server")
        fleet.airflow.wait_until(fleet.airflow.is_healthy, "the API server to answer")
        back = time.monotonic()
        finish(fleet, "in_outage", run_id)
        assert len(notes(fleet, "in_outage", "start")) == 1, "it was started again"
        assert fleet.airflow.wait_for_run("spread", "in_outage") == "success"
        assert tries(fleet, "spread", "in_outage") == [1] * 8
        print(f"API server away for {back - at:.0f} s: all were over {time.monotonic() - back:.1f} s after it")

    def test_kill_9_of_a_task_on_a_worker_goes_on_from_its_checkpoint(self, fleet):
        run_id = start_training(fleet, "killed")
        psutil.Process(notes(fleet, "killed")[-1]["pid"]).kill()
        finish(fleet, "killed", run_id)

    def test_a_worker_that_is_killed_is_found_and_its_task_runs_elsewhere(self, fleet):
        run_id = start_training(fleet, "moved")
        first = notes(fleet, "moved")[-1]
        at = fleet.kill_worker(first["worker"])
        lost_after_s = fleet.wait_until_lost(first["worker"]) - at
        fleet.airflow.wait_until(lambda: len(notes(fleet, "moved", "start")) > 1, "it to run elsewhere")
        second = notes(fleet, "moved", "start")[1]
        assert second["worker"] != first["worker"]
        elsewhere_s = second["at"] - at
        print(f"worker killed: found after {lost_after_s:.1f} s, running elsewhere after {elsewhere_s:.1f} s")
        finish(fleet, "moved", run_id)
        fleet.restart_worker(first["worker"])
        fleet.wait_for(first["worker"])

    def test_a_worker_that_is_cut_off_comes_back_only_without_its_old_task(self, fleet):
        cut_off_and_wake_up(fleet, "cut")

    def test_a_gang_trains_on_two_workers_and_goes_on_whole_after_each_of_them_was_lost(self, fleet):
        """First the worker of rank 1 is lost, then that of rank 0, to which the other connects, and which saves."""
        steps = 100
        run_id = fleet.airflow.trigger("gang", {"name": "gang", "steps": steps})
        begun = gang_begins(fleet, 1, first_step=0)
        for times, lost_rank in ((1, 1), (2, 0)):
            lost = begun[lost_rank]["worker"]
            at = fleet.kill_worker(lost)
            fleet.airflow.wait_until(lambda: not leases(fleet, "gang"), "the gang to have given all back")
            print(f"worker of rank {lost_rank} killed: all devices given back after {time.time() - at:.1f} s")
            fleet.airflow.wait_until(
                lambda: rows(fleet, run_id) == {0: ("queued", 1), 1: ("queued", 1)}, "both to be held"
            )
            saved = newest_checkpoint(fleet, "gang", "train")
            assert len(notes(fleet, "gang", "start")) == 2 * times, "one rank started again without the other"
            back = time.time()
            fleet.restart_worker(lost)
            fleet.wait_for(lost)
            again = gang_begins(fleet, times + 1, first_step=saved + 1)
            print(f"worker is back: both ranks train after {max(line['at'] for line in again.values()) - back:.1f} s")
            assert {line["gang"] for line in begun.values()}.isdisjoint(line["gang"] for line in again.values())
            assert min(line["token"] for line in again.values()) > max(line["token"] for line in begun.values())
            begun = again
        let_hurry(fleet, "gang")
        assert fleet.airflow.wait_for_run("gang", run_id) == "success"
        assert fleet.airflow.xcom("gang", run_id, "train", 0) == 2.0 * steps, (
            "the sum of what both ranks added in each step: one is missing, or counted twice"
        )
        assert rows(fleet, run_id) == {0: ("success", 1), 1: ("success", 1)}
        for rank in (0, 1):
            log = fleet.airflow.log_text("gang", run_id, "train", map_index=rank)
            assert f"Worker {rank} of 2 of gang gang.train[0-1] ({run_id}) #1" in log

    def test_drain_on_sigterm_lets_the_task_finish(self, fleet):
        run_id = fleet.airflow.trigger("long", {"seconds": 600})
        fleet.airflow.wait_until(lambda: notes(fleet, "long", "start")[-1:], "the task to run")
        worker = notes(fleet, "long", "start")[-1]["worker"]
        fleet.process(f"agent-{worker}").send_signal(signal.SIGTERM)
        log = fleet.airflow.home / f"agent-{worker}.log"
        fleet.airflow.wait_until(lambda: "waits for 1 leases to end" in log.read_text(), "the agent to wait for it")
        let_hurry(fleet, "long")
        assert fleet.airflow.wait_for_run("long", run_id) == "success"
        second_run = run(fleet, "long", {"seconds": 1})
        assert fleet.airflow.xcom("long", second_run, "long")["worker"] != worker
        fleet.restart_worker(worker)
        fleet.wait_for(worker)
