"""`busy.py`, which `make test-busy` runs the tests with."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

BUSY = Path(__file__).resolve().parents[2] / "tools" / "busy.py"
COUNT = """
import psutil, sys
siblings = [child for child in psutil.Process().parent().children() if child.pid != psutil.Process().pid]
sys.exit(40 + len(siblings))
"""


def test_a_busy_process_for_each_core_runs_beside_the_command_whose_exit_code_counts():
    done = subprocess.run([sys.executable, BUSY, sys.executable, "-c", COUNT], check=False)
    assert done.returncode == 40 + os.cpu_count()


def test_a_kill_leaves_no_busy_process():
    command = [sys.executable, BUSY, sys.executable, "-uc", "print('runs'); import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        children = psutil.Process(process.pid).children()
        process.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    for child in alive:
        child.kill()
    assert (len(children), alive) == (1 + os.cpu_count(), [])
