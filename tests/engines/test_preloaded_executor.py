"""Worker processes come from a fork server once its modules are known to suit, and from another one after a change."""

import multiprocessing
import time

import psutil
import pytest

from hetero_airflow.engines import preloaded_executor
from hetero_airflow.engines.preloaded_executor import PreloadedExecutor
from tests.waiting import eventually

COUNT = 2


class SlowTrial:
    """Has no answer until the test gives it one."""

    made = 0
    answer: str | None = None

    def __init__(self, names):
        type(self).made += 1

    def problem(self):
        return type(self).answer

    def end(self):
        pass


@pytest.fixture
def trial(monkeypatch):
    class Trial(SlowTrial):
        pass

    monkeypatch.setattr(preloaded_executor, "PreloadTrial", Trial)
    return Trial


@pytest.fixture
def executor(monkeypatch, trial):
    monkeypatch.setattr(preloaded_executor, "_LOOK_S", 0.0)
    made = PreloadedExecutor(COUNT, None, ["json"])
    made.start()
    yield made
    made.end()
    if made._server:
        psutil.Process(made._server).kill()


def parents(executor):
    """Whose children the worker processes are, once all of them are of one parent and alive."""
    executor._check_workers()
    alive = [psutil.Process(pid).ppid() for pid, process in executor.workers.items() if process.is_alive()]
    return set(alive) if len(alive) == COUNT else set()


def server_of(executor):
    def found():
        now = parents(executor)
        return now if len(now) == 1 and psutil.Process().pid not in now else None

    (server,) = eventually(found)
    return server


def test_the_scheduler_starts_before_the_trial_ends(executor, trial):
    assert parents(executor) == {psutil.Process().pid}
    trial.answer = ""
    assert server_of(executor) == executor._server


def test_modules_that_do_not_suit_leave_all_as_it_is(executor, trial, caplog):
    trial.answer = "torch starts 3 threads"
    assert parents(executor) == {psutil.Process().pid}
    assert (executor._trial, executor._context) == (None, multiprocessing)


def test_another_version_gets_another_fork_server_and_no_task_is_ended(executor, trial, monkeypatch):
    trial.answer = ""
    before = server_of(executor)
    busy = next(iter(executor.workers))
    psutil.Process(busy).suspend()  # it does not end, as if it had a task
    packages = frozenset({("/site", "torch-3.0.dist-info")})
    monkeypatch.setattr(preloaded_executor, "installed_packages", lambda: packages)
    eventually(lambda: trial.made == 2 or executor._check_workers())
    for _ in range(20):
        executor._check_workers()
        time.sleep(0.01)
    assert psutil.Process(before).is_running(), "its worker process has a task"
    assert psutil.pid_exists(busy)
    psutil.Process(busy).resume()
    assert server_of(executor) != before
    assert not psutil.pid_exists(before) or psutil.Process(before).status() == psutil.STATUS_ZOMBIE


def test_a_change_during_a_trial_begins_it_anew(executor, trial, monkeypatch):
    for number in range(3):
        versions = frozenset({("/site", f"torch-{number}.dist-info")})
        monkeypatch.setattr(preloaded_executor, "installed_packages", lambda versions=versions: versions)
        executor._check_workers()
        assert executor._trial is None
    executor._check_workers()
    assert (executor._trial is not None, trial.made) == (True, 2)
