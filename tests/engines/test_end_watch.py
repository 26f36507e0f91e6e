"""The thread that reacts to the ends of tasks between two heartbeats."""

import subprocess
from multiprocessing import Pipe
from threading import Event, current_thread
from types import SimpleNamespace

import pytest

from hetero_airflow.engines import end_watch
from hetero_airflow.engines.end_watch import EndWatch


@pytest.fixture
def pipe():
    readable, writable = Pipe(duplex=False)
    yield SimpleNamespace(readable=readable, writable=writable)
    readable.close()
    writable.close()


def test_each_report_is_taken_at_once_in_a_thread_beside_the_scheduler(pipe):
    taken, threads = Event(), []

    def react(ends):
        threads.append(current_thread())
        ends.readable.recv()
        taken.set()

    watch = EndWatch(react)
    watch.start(pipe)
    for _ in range(2):
        pipe.writable.send("over")
        assert taken.wait(600)
        taken.clear()
    watch.stop()
    assert len(threads) == 2
    assert current_thread() not in threads


def test_after_an_error_it_tries_again(pipe, monkeypatch, caplog):
    monkeypatch.setattr(end_watch, "_RETRY_S", 0.01)
    taken, errors = Event(), [ZeroDivisionError("once")]

    def react(ends):
        if errors:
            raise errors.pop()
        ends.readable.recv()
        taken.set()

    watch = EndWatch(react)
    watch.start(pipe)
    pipe.writable.send("over")
    assert taken.wait(600)
    watch.stop()
    assert "the scheduler's next heartbeat does it" in caplog.text


def test_it_ends_when_it_is_told_to_while_nothing_is_reported(pipe):
    watch = EndWatch(lambda ends: pytest.fail("nothing was reported"))
    watch.start(pipe)
    thread = watch._thread
    watch.stop()
    assert not thread.is_alive()


def test_it_ends_though_a_process_was_forked_meanwhile(pipe):
    watch = EndWatch(lambda ends: pytest.fail("nothing was reported"))
    watch.start(pipe)
    with subprocess.Popen(["sleep", "60"], pass_fds=[watch._stop.fileno()]) as child:
        watch.stop()
        child.kill()
