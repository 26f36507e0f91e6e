import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from hetero_airflow.engines.host.processes import LeaseRoot, end_processes, lease_processes
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import a_task_lease


@pytest.fixture
def start():
    """Starts a Python process that waits for ever, in a group of its own if asked; all are ended afterwards."""
    started = []

    def _start(code="import time; print(flush=True); time.sleep(600)", lease=None, **kwargs):
        environment = {**os.environ, **({LEASE_VARIABLE: lease.model_dump_json()} if lease else {})}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, **kwargs)
        started.append(process)
        process.stdout.readline()
        return process

    yield _start
    for process in started:
        process.kill()
        process.stdout.close()
        process.wait()


def test_a_process_is_found_by_the_lease_in_its_environment_wherever_it_went(start):
    process = start(lease=a_task_lease(id="lease-a"), start_new_session=True)
    start(lease=a_task_lease(id="lease-b"))
    assert lease_processes({"lease-a": LeaseRoot()}) == {"lease-a": [process.pid]}


def test_a_process_is_found_by_its_group_even_after_the_leader_is_gone(start):
    leader = start(process_group=0)
    member = start(process_group=leader.pid)
    assert sorted(lease_processes({"none": LeaseRoot(leader.pid)})["none"]) == sorted([leader.pid, member.pid])
    leader.kill()
    leader.wait()
    assert lease_processes({"none": LeaseRoot(leader.pid)}) == {"none": [member.pid]}


def test_a_zombie_holds_no_device(start):
    process = start(lease=a_task_lease(id="lease-z"))
    process.kill()
    end = time.monotonic() + 600
    while lease_processes({"lease-z": LeaseRoot(process.pid)}) and time.monotonic() < end:
        pass
    assert lease_processes({"lease-z": LeaseRoot(process.pid)}) == {}


def test_a_pid_that_was_given_to_a_younger_process_is_not_ours(start):
    process = start(start_new_session=True)
    assert lease_processes({"none": LeaseRoot(process.pid, datetime.now(UTC))}) == {"none": [process.pid]}
    assert lease_processes({"none": LeaseRoot(process.pid, datetime.now(UTC) - timedelta(hours=1))}) == {}


def test_end_processes_kills_what_ignores_sigterm(start):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = start(code, lease=a_task_lease(id="lease-i"))
    assert end_processes("lease-i", LeaseRoot(), grace_s=0.2) == ([process.pid], [])
    assert process.wait(600) == -9


def test_end_processes_of_a_clean_task_finds_nothing():
    assert end_processes("lease-none", LeaseRoot(), grace_s=5) == ([], [])
