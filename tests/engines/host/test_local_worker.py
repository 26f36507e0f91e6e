"""The worker processes of a real LocalExecutor whose scheduler is another process."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.waiting import eventually

SCHEDULER = """
import signal, sys, time
from airflow.executors.local_executor import LocalExecutor
from hetero_airflow.engines.local import HostExecutor, PreloadedExecutor

signal.signal(signal.SIGTERM, lambda *_: None)  # as that of Airflow's scheduler in its children
executor = PreloadedExecutor(3, None, ["json"]) if sys.argv[1] == "preloaded" else HostExecutor(3)
executor.start()
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(sys.argv[2], "w") as file:
    print(*executor.workers, file=file)
time.sleep(600)
"""


@pytest.fixture(params=["forked", "preloaded"])
def scheduler(request):
    """A scheduler in a process group of its own, as in a terminal; and its worker processes."""
    with (
        TemporaryDirectory() as folder,  # multiprocessing leaves some there when it is killed
        subprocess.Popen(
            [sys.executable, "-c", SCHEDULER, request.param, f"{folder}/workers"],
            env=os.environ | {"TMPDIR": folder},
            start_new_session=True,
        ) as process,
    ):
        names = Path(folder) / "workers"
        try:
            eventually(lambda: names.exists() and names.read_text().endswith("\n"))
            workers = [psutil.Process(int(pid)) for pid in names.read_text().split()]
            eventually(lambda: all("<idle>" in worker.cmdline()[0] for worker in workers))
            yield process, workers
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def is_there(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_idle_worker_processes_end_with_a_scheduler_that_is_killed(scheduler):
    process, workers = scheduler
    assert len(workers) == 3
    process.kill()
    eventually(lambda: not any(map(is_there, workers)))


def test_ctrl_c_reaches_the_scheduler_and_no_worker_process(scheduler):
    process, workers = scheduler
    os.killpg(process.pid, signal.SIGINT)
    assert {os.getpgid(worker.pid) for worker in workers} == {worker.pid for worker in workers}
    assert all(map(is_there, workers))


def test_a_worker_process_without_a_task_ends_at_sigterm(scheduler):
    _, (worker, *others) = scheduler
    worker.terminate()
    eventually(lambda: not is_there(worker))
    assert all(map(is_there, others)), "it has left the lock of the queue"
