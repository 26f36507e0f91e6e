"""What a task uses, from outside: its cores, its ranks."""

import os
import subprocess
import sys
import time

from hetero_airflow.supervisor.usage import cpu_s, dumping_ranks, utilization
from hetero_airflow.testing import a_task_lease


def test_a_process_that_computes_in_a_session_of_its_own_counts():
    code = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\ninput()"
    before = cpu_s(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    try:
        end = time.monotonic() + 600
        while cpu_s(os.getpid()) - before < 0.4:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        child.kill()
        child.communicate()
    assert cpu_s(child.pid) == 0.0


def test_only_ranks_that_can_show_their_stacks_are_asked_to():
    module = "hetero_airflow.runtime.rank_process"
    waits = "print(flush=True); input()"
    shows = f"import faulthandler, signal; faulthandler.register(signal.SIGUSR1); {waits}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    rank = subprocess.Popen([sys.executable, "-c", shows, module], **pipes)
    torchrun = subprocess.Popen([sys.executable, "-c", waits, "-m", module], **pipes)
    other_process = subprocess.Popen([sys.executable, "-c", shows], **pipes)
    started = (rank, torchrun, other_process)
    try:
        for process in started:
            process.stdout.readline()
        assert dumping_ranks(os.getpid()) == [rank.pid]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_nobody_can_tell_of_devices_that_are_not_there():
    assert utilization(a_task_lease(vendor="amd")) is None
    assert utilization(a_task_lease(simulated=True)) is None
