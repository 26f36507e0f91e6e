"""Processes that leave their task keep no device for long, and never share it: they are ended, or reported."""

import json
import os
import signal
import time

import psutil
import pytest

from tests.open_node import process_that_opens

SERVICE = "wait_for_another_service"


@pytest.fixture(scope="module")
def daemons(airflow, board):
    """A run of the DAG: (return value by task, time at which a process was gone or reported by task, shared devices).

    A shared device is one that another lease holds while a process of the last one lives.
    """
    run_id = airflow.trigger("daemons")
    folder = airflow.home / "daemons" / run_id.replace(":", "")
    airflow.wait_until((folder / f"{SERVICE}.lease").exists, "the task on the board to run")
    store, over, shared = airflow.store(), {}, []

    def are_over():
        states = {ti["task_id"]: ti["state"] for ti in airflow.tasks("daemons", run_id)}
        assert set(states.values()) <= {None, "scheduled", "queued", "running", "success"}, states
        snapshot = store.snapshot()
        for path in folder.glob("*.pid"):
            lease, pid = json.loads(path.with_suffix(".lease").read_text()), int(path.read_text())
            if path.stem not in over and (not psutil.pid_exists(pid) or is_reported(snapshot, lease, pid)):
                over[path.stem] = time.time()
            if psutil.pid_exists(pid):
                shared.extend((path.stem, id_) for id_ in held_by_others(snapshot, lease))
        return over.keys() == states.keys() and set(states.values()) == {"success"}

    try:
        with process_that_opens(board) as service:
            (folder / "service").write_text(str(service.pid))
            (folder / "service").rename(folder / f"{SERVICE}.pid")
            airflow.wait_until(are_over, "each process to be ended or reported", every_s=0.1)
    finally:
        for path in folder.glob("*.pid"):
            if path.stem not in over:
                os.kill(int(path.read_text()), signal.SIGKILL)
    values = {path.stem: airflow.xcom("daemons", run_id, path.stem) for path in folder.glob("*.lease")}
    return values, over, shared


def is_reported(snapshot, lease, pid):
    """Whether the devices of a lease get no task, with the process as the cause."""
    devices = [device for worker in snapshot.workers for device in worker.devices if device.id in lease["ids"]]
    return all(not device.leasable and f"process {pid} " in device.problem for device in devices)


def held_by_others(snapshot, lease):
    return [
        claim.device_id
        for other in snapshot.leases
        for claim in other.claims
        if claim.device_id in lease["ids"] and other.token != lease["token"]
    ]


def test_each_process_that_a_task_leaves_behind_is_ended_or_reported(daemons):
    values, over, _ = daemons
    after_s = {task_id: round(over[task_id] - value["end"], 1) for task_id, value in values.items()}
    print(f"seconds from the end of a task's code until its process was ended or reported: {after_s}")
    assert len(after_s) == 6


def test_no_device_is_leased_while_such_a_process_lives(daemons):
    values, _, shared = daemons
    assert shared == []
    assert [value["others"] for value in values.values()] == [[]] * 6


def test_a_device_is_back_once_a_reported_process_has_ended(airflow, daemons):
    store = airflow.store()

    def is_back():
        devices = [device for worker in store.snapshot().workers for device in worker.devices]
        return any(device.model == "board" and device.leasable for device in devices)

    airflow.wait_until(is_back, "the board to be leasable again")
