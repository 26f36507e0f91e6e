"""What a task uses, from outside: its cores, its ranks."""

import os
import subprocess
import sys
import time

from hetero_airflow.executor.task_use import cpu_s, rank_pids, utilization
from tests.operators.test_operators import a_task_lease


def test_a_process_that_computes_in_a_session_of_its_own_counts():
    code = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\ninput()"
    before = cpu_s(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    try:
        end = time.monotonic() + 30
        while cpu_s(os.getpid()) - before < 0.4:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        child.kill()
        child.communicate()
    assert cpu_s(child.pid) == 0.0


def test_only_ranks_are_asked_for_their_stacks():
    code = "input()"
    rank = subprocess.Popen([sys.executable, "-c", code, "hetero_airflow.runtime.rank_process"], stdin=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert rank_pids(os.getpid()) == [rank.pid]
    finally:
        for process in (rank, other):
            process.kill()
            process.communicate()


def test_nobody_can_tell_of_devices_that_are_not_there():
    assert utilization(a_task_lease(vendor="amd")) is None
    assert utilization(a_task_lease(simulated=True)) is None
