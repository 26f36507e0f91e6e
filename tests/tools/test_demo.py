"""``make demo`` as its users meet it: a run that goes well, and one that is interrupted.

One that fails is among the tests of the example DAGs, which have an Airflow for it.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import foreground
import psutil
import pytest
from local_airflow import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".airflow" / "demo"


@pytest.fixture
def demo():
    """``make demo``, which has just begun."""
    with subprocess.Popen(
        [sys.executable, ROOT / "tools" / "demo.py"],
        env={**os.environ, "COLUMNS": "160", "HETERO_AIRFLOW_SIMULATED_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process
        process.kill()
    for pid in processes_of_the_demo():  # a green test has left none
        os.kill(pid, signal.SIGKILL)


def processes_of_the_demo():
    pids = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(HOME):
                pids.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return pids


def test_a_folder_takes_one_airflow_only(tmp_path):
    foreground.refuse_second(tmp_path)
    sleeper = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        with pytest.raises(foreground.StillRunning, match=rf"kill {sleeper.pid}$"):
            foreground.refuse_second(tmp_path)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_run_shows_where_each_task_ran_and_why_and_where_the_model_is(demo):
    output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, output
    assert re.search(r"train .* 1 × (cpu|gpu): the only worker that fits", output.replace("\n", " "))
    assert float(re.search(r"Accuracy: ([0-9.]+)%", output)[1]) > 95
    model = Path(re.search(r"Model: +(.*)", output)[1])
    assert model.is_relative_to(HOME)
    assert model.stat().st_size > 10_000
    assert processes_of_the_demo() == []


def test_an_interrupted_demo_leaves_no_process(demo):
    lines = ["begin"]
    while ": running" not in lines[-1]:
        lines.append(demo.stdout.readline())
        assert lines[-1], "".join(lines)
    demo.send_signal(signal.SIGINT)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, "".join(lines) + output
    assert "Interrupted." in output
    assert processes_of_the_demo() == []
