"""The witness of the random sequences sees two users of a device, whatever has become of the first."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.dag_modules import dag_module
from tests.chaos.verdict import doubles, shared_tokens

PROGRAM = Path(__file__).parent / "dags" / "chaos_witness.py"


def a_lease(token=1, share=None, device="GPU-0", worker="host-a"):
    return {"id": f"lease-{token}", "token": token, "worker": worker, "ids": [device], "share": share}


@pytest.fixture
def start(tmp_path):
    """Starts a process that uses a device; it has its locks when the call returns."""
    started = []

    def start(name, lease, *arguments):
        process = subprocess.Popen(
            [sys.executable, PROGRAM, tmp_path, name, json.dumps(lease), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def journal(tmp_path):
    return dag_module("chaos_witness").Witness(tmp_path).lines


def finish(process):
    process.stdin.close()
    assert process.wait(30) == 0


def test_two_processes_with_one_device_are_a_double(start, journal):
    start("first", a_lease(1))
    start("second", a_lease(2))
    (double,) = doubles(journal())
    assert double.task == "second"
    assert double.holders in ((("first", "S"),), (("first", "R"),))


def test_a_frozen_process_still_holds_its_device(start, journal):
    first = start("first", a_lease(1))
    first.send_signal(signal.SIGSTOP)
    os.waitpid(first.pid, os.WUNTRACED)
    start("second", a_lease(2))
    (double,) = doubles(journal())
    assert double.holders == (("first", "T"),)


def test_a_daemon_of_a_process_that_is_gone_still_holds_its_device(start, journal):
    finish(start("first", a_lease(1), "30"))
    start("second", a_lease(2))
    (double,) = doubles(journal())
    assert double.holders == (("first", "gone"),)


@pytest.mark.parametrize("ends", [finish, lambda process: (process.kill(), process.wait())])
def test_one_after_the_other_is_no_double(start, journal, ends):
    ends(start("first", a_lease(1)))
    start("second", a_lease(2))
    assert doubles(journal()) == []


def test_two_halves_fit_and_a_third_does_not(start, journal):
    for token in (1, 2):
        start(f"half {token}", a_lease(token, share=0.5))
    assert doubles(journal()) == []
    start("third", a_lease(3, share=0.5))
    (double,) = doubles(journal())
    assert (double.task, [task for task, _ in double.holders]) == ("third", ["half 1", "half 2"])


def test_a_half_beside_a_whole_is_a_double(start, journal):
    start("half", a_lease(1, share=0.5))
    start("whole", a_lease(2))
    (double,) = doubles(journal())
    assert (double.task, [task for task, _ in double.holders]) == ("whole", ["half"])


def test_devices_of_other_names_and_workers_are_no_double(start, journal):
    start("first", a_lease(1))
    start("second", a_lease(2, device="GPU-1"))
    start("third", a_lease(3, worker="host-b"))
    assert doubles(journal()) == []


def test_a_token_that_two_processes_used_is_seen(start, journal):
    finish(start("first", a_lease(1)))
    assert shared_tokens(journal()) == []
    finish(start("again", a_lease(1)))
    finish(start("other", a_lease(2)))
    assert shared_tokens(journal()) == [1]
