"""A scheduler that is told to stop, and the runs of its host."""

import subprocess
import sys
from uuid import UUID, uuid5

import pytest

from hetero_airflow.contract.progress import Progress, ProgressPhase
from hetero_airflow.executor import stopping
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.run import Phase
from hetero_airflow.executor.stopping import LocalStop
from hetero_airflow.testing import EPOCH

GRACE_S = 60.0


class Host:
    """Stands for LocalEngine as it stops, and for what its tasks do meanwhile. All waiting is counted here."""

    def __init__(self, bench):
        self.bench, self.waited_s = bench, 0.0
        self.reported, self.untaken, self.callbacks_until_s = {}, [], 0.0
        self.on_sleep = lambda: None
        bench.store.invalidate = lambda: None
        bench.engine.tell = self.tell

    def monotonic(self):
        return self.waited_s

    def sleep(self, seconds):
        self.waited_s += seconds
        self.bench.clock.advance(seconds)
        self.on_sleep()

    def tell(self, lease_id, notice):
        self.bench.engine.told.append(lease_id)
        step = self.reported[lease_id].step
        self.reported[lease_id] = Progress(step=step, saved_step=step, at=EPOCH, phase=ProgressPhase.STOPPING)

    def take_back(self):
        return self.untaken

    def has_run(self, task_instance_id, lease_id):
        return lease_id in self.bench.engine.alive if lease_id else task_instance_id in self.bench.tasks.rows

    def progress(self, lease_id):
        return self.reported.get(lease_id)

    def has_callbacks(self, task_instance_ids):
        return self.waited_s < self.callbacks_until_s

    def has_processes(self):
        return bool(self.bench.engine.alive)

    def terminate_tasks(self):
        self.bench.engine.alive.clear()


@pytest.fixture
def host(bench, monkeypatch):
    host = Host(bench)
    monkeypatch.setattr(stopping, "time", host)
    return host


def stop(bench, host, take_reports=lambda: None):
    LocalStop(bench.dispatcher, host, take_reports).run()


def start_saving(bench, host, name, step=7):
    id_ = bench.start(name)
    host.reported[bench.lease(id_).id] = Progress(step=step, at=EPOCH, phase=ProgressPhase.STEPPING)
    return id_


def test_without_the_api_server_only_tasks_that_save_are_waited_for(bench, host):
    saves, holds = start_saving(bench, host, "saves"), bench.start("holds")
    saving = bench.lease(saves).id
    bench.lose_api_server()
    stop(bench, host)
    assert bench.engine.told == [saving]
    assert sorted(bench.tasks.sent_back) == sorted([saves, holds])
    assert host.waited_s < 1
    assert not bench.store.snapshot().leases
    assert bench.reports == []
    assert [text for _, text in bench.notes if "stopped" in text] == ["stopped: its scheduler was stopped."] * 2


def test_with_the_api_server_each_task_may_end_in_the_grace_time(bench, host):
    id_ = bench.start("holds")

    def end():
        if host.waited_s > 30 and "holds" in bench.runs.leased:
            bench.tasks.rows[id_] = TaskProcess("success", 100, "here", bench.clock.now())
            bench.finish("holds")

    host.on_sleep = end
    stop(bench, host)
    assert 30 < host.waited_s < 32
    assert bench.tasks.sent_back == []
    assert not bench.store.snapshot().leases


def test_a_task_that_does_not_end_in_the_grace_time_is_sent_back_and_its_log_says_so(bench, host, tmp_path):
    id_ = bench.start("holds")
    bench.runs.leased["holds"].workload.log_path = str(tmp_path / "try.log")
    stop(bench, host)
    assert GRACE_S <= host.waited_s < GRACE_S + 10
    assert bench.tasks.sent_back == [id_]
    assert "It goes on later with the same try." in (tmp_path / "try.log").read_text()


def test_a_task_without_a_lease_is_sent_back_if_its_process_is_here(bench, host):
    for name in ("here", "elsewhere", "queued"):
        id_ = str(uuid5(UUID(int=0), name))
        bench.runs.note_sent(name, id_, None, bench.clock.now())
        bench.tasks.rows[id_] = TaskProcess("queued" if name == "queued" else "running", 100, "here")
    here, elsewhere = (str(uuid5(UUID(int=0), name)) for name in ("here", "elsewhere"))
    host.has_run = lambda task_instance_id, lease_id: task_instance_id != elsewhere
    bench.lose_api_server()
    stop(bench, host)
    assert bench.tasks.sent_back == [here]
    assert list(bench.runs.sent) == ["elsewhere"]


def test_what_no_worker_process_has_begun_frees_its_device_and_waits_on(bench, host):
    id_ = bench.hold("a")
    bench.beat()
    assert bench.runs.leased["a"].phase is Phase.HANDED_OVER
    host.untaken = ["a"]
    stop(bench, host)
    assert (bench.tasks.sent_back, host.waited_s < 1) == ([], True)
    assert not bench.store.snapshot().leases
    assert bench.tasks.rows[id_].state == "queued"


def test_a_callback_is_waited_for(bench, host):
    host.callbacks_until_s = 5.0
    stop(bench, host)
    assert 5 <= host.waited_s < 6


def test_a_database_that_does_not_answer_keeps_no_scheduler(bench, host):
    bench.start("holds")

    def processes(ids):
        raise OSError("the database is away")

    bench.tasks.processes = processes
    bench.lose_api_server()
    stop(bench, host)
    assert host.waited_s < 10


SCHEDULER = """
import signal, sys, time
from hetero_airflow.executor.stopping import ignore_later_signals

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit(7))
ignore_later_signals()
try:
    signal.raise_signal(signal.SIGINT)
finally:
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    print("saved")
"""


def test_a_second_signal_does_not_interrupt_the_stop():
    done = subprocess.run([sys.executable, "-c", SCHEDULER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[-1]) == (7, "saved")


def test_a_process_that_was_not_started_for_signals_keeps_its_own(monkeypatch):
    found = []
    monkeypatch.setattr(stopping.signal, "signal", lambda *arguments: found.append(arguments))
    stopping.ignore_later_signals()
    assert found == []
