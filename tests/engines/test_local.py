import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing import Lock, Value
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from airflow.executors.workloads import ExecuteTask

from hetero_airflow.engines import local
from hetero_airflow.engines.engine import EngineContext, LeasedProcess, Liveness
from hetero_airflow.engines.host.lease_files import read_lease_files, recorded_lease
from hetero_airflow.engines.host.processes import process_identity
from hetero_airflow.engines.local import LocalEngine
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.testing import a_lease, a_signer, a_worker

LEASE = a_lease().model_copy(update={"id": "lease"})


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def a_process():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def a_recorded_run(pid):
    """A run of the lease whose supervisor has no other children."""
    with a_process() as supervisor, recorded_lease("lease", "worker-a") as run:
        run.update(supervisor=process_identity(supervisor.pid))
        run.begin(pid)
        yield


@pytest.fixture
def process():
    with a_process() as process:
        yield process


def test_a_clock_that_is_set_forward_hides_no_process_that_was_known(process):
    """Airflow last saw it on the clock as it was, and by the clock as it is now the process began after that."""
    engine, now = LocalEngine(1), datetime.now(UTC)
    before_the_jump = now - timedelta(hours=1)
    assert engine.processes({"lease": (process.pid, now)}) == {"lease": [process.pid]}
    assert engine.processes({"lease": (process.pid, before_the_jump)}) == {"lease": [process.pid]}
    assert LocalEngine(1).processes({"lease": (process.pid, before_the_jump)}) == {}
    process.kill()
    process.wait()
    assert engine.processes({"lease": (process.pid, before_the_jump)}) == {}


def test_the_process_that_began_under_a_lease_counts_and_not_the_one_that_the_task_has_now(process):
    with a_process() as frozen, a_recorded_run(frozen.pid):
        frozen.send_signal(signal.SIGSTOP)
        now = datetime.now(UTC)
        assert LocalEngine(1).processes({"lease": (process.pid, now)}) == {"lease": [frozen.pid]}
        LocalEngine(1).signal(LeasedProcess(LEASE, "running", process.pid, seen_at=now), signal.SIGKILL)
        assert frozen.wait(600) == -signal.SIGKILL
        assert process.poll() is None


def test_a_lease_whose_recorded_process_is_gone_has_no_other(process):
    with a_process() as ended, a_recorded_run(ended.pid):
        ended.kill()
        ended.wait()
        assert LocalEngine(1).processes({"lease": (process.pid, datetime.now(UTC))}) == {}


def test_a_later_process_with_the_recorded_pid_is_another_one(process):
    with a_recorded_run(process.pid):
        (path,) = read_lease_files()
        path.write_text(re.sub(rf'"pid":{process.pid},"ticks":\d+', f'"pid":{process.pid},"ticks":1', path.read_text()))
        assert LocalEngine(1).processes({"lease": (process.pid, datetime.now(UTC))}) == {}


def test_a_record_of_an_earlier_boot_or_of_another_container_does_not_count(process):
    with a_recorded_run(os.getpid()):
        (path,) = read_lease_files()
        path.write_text(path.read_text().replace('"place":"', '"place":"earlier-'))
        assert LocalEngine(1).processes({"lease": (process.pid, datetime.now(UTC))}) == {"lease": [process.pid]}


def test_a_lease_is_in_use_while_its_supervisor_starts_the_task():
    with recorded_lease("lease", "worker-a"):
        liveness = LocalEngine(1).liveness_of([LeasedProcess(LEASE, "queued", is_ours=True)])
    assert liveness == {"lease": Liveness.ALIVE}


def test_a_pid_of_another_host_is_no_process_of_this_one(process):
    """Containers of one image often give the same numbers to their processes."""
    engine = LocalEngine(1)
    far = LeasedProcess(LEASE, "success", process.pid, "another-host", datetime.now(UTC))
    assert engine.liveness_of([far]) == {"lease": Liveness.UNKNOWN}
    engine.signal(far, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)


@pytest.mark.parametrize(
    ("worker_id", "expired_s", "liveness"),
    [
        ("worker-a", 70, Liveness.UNKNOWN),
        ("worker-a", 80, Liveness.GONE),
        ("worker-b", 80, Liveness.UNKNOWN),
    ],
)
def test_a_task_of_a_dead_scheduler_of_this_host_does_not_start_after_the_start_timeout(
    monkeypatch, worker_id, expired_s, liveness
):
    monkeypatch.setattr(local, "get_hostname", lambda: "worker-a")
    expired_at = datetime.now(UTC) - timedelta(seconds=expired_s)
    expired = LEASE.model_copy(update={"worker_id": worker_id, "expires_at": expired_at})
    assert LocalEngine(1).liveness_of([LeasedProcess(expired, "queued")]) == {"lease": liveness}


@pytest.mark.parametrize(
    ("state", "seen_s", "worker_state", "liveness"),
    [
        ("running", 400, WorkerState.LOST, Liveness.GONE),
        ("running", 100, WorkerState.LOST, Liveness.UNKNOWN),
        ("running", 400, WorkerState.ONLINE, Liveness.UNKNOWN),
        ("queued", None, WorkerState.LOST, Liveness.GONE),
        ("queued", None, WorkerState.ONLINE, Liveness.UNKNOWN),
        (None, 400, WorkerState.LOST, Liveness.GONE),
        (None, 100, WorkerState.LOST, Liveness.UNKNOWN),
        (None, 400, WorkerState.ONLINE, Liveness.UNKNOWN),
    ],
)
def test_a_lease_of_a_host_whose_scheduler_is_lost_is_over_once_airflow_takes_the_task_for_lost_too(
    monkeypatch, state, seen_s, worker_state, liveness
):
    """A container that is restarted under a new name can't see the processes of the old one."""
    engine, workers = LocalEngine(1), {"worker-a": a_worker(state=worker_state)}
    monkeypatch.setattr(engine.executor, "start", lambda: None)
    engine.start(EngineContext("1", None, None, dict, lambda: workers, a_signer()))
    seen_at = None if seen_s is None else datetime.now(UTC) - timedelta(seconds=seen_s)
    hostname = "" if seen_s is None else "worker-a"
    assert engine.liveness_of([LeasedProcess(LEASE, state, None, hostname, seen_at)]) == {"lease": liveness}


def test_the_names_of_all_temporary_files_are_not_read_once_for_each_lease(monkeypatch, tmp_path):
    """The scheduler's loop asks, and there may be thousands of names."""
    read: list[str] = []

    def recording(function):
        return lambda path=".": read.append(str(path)) or function(path)

    leases = [LEASE.model_copy(update={"id": f"lease-{number}"}) for number in range(20)]
    monkeypatch.setattr(os, "listdir", recording(os.listdir))
    monkeypatch.setattr(os, "scandir", recording(os.scandir))
    LocalEngine(1).liveness_of([LeasedProcess(lease, "running", is_ours=True) for lease in leases])
    assert read.count(str(tmp_path)) <= 3


class PlainTask:
    """A task without a device, as its scheduler and its worker process see it. No real worker process starts."""

    def __init__(self, engine):
        self.engine, self.executor, self.process = engine, engine.executor, None
        self.executor.activity_queue, self.executor.result_queue = SimpleQueue(), SimpleQueue()
        self.executor._unread_messages, self.executor.workers = Value("I"), {}
        self.workload = ExecuteTask.model_construct(ti=SimpleNamespace(key="plain", id="first-run", priority_weight=1))
        self.executor._spawn_workers_with_gc_freeze = lambda number: None

    def is_here(self, state, id="first-run"):
        return self.engine.is_busy_with(SimpleNamespace(key="plain", id=id, state=state))

    def take(self):
        """As a worker process: take it from the pipe. The process has no title yet."""
        assert self.executor.activity_queue.get() is self.workload
        self.executor._unread_messages.value -= 1

    def begin(self):
        title = "airflow worker -- LocalExecutor: first-run"
        self.process = subprocess.Popen([title, "600"], executable=shutil.which("sleep"))
        while not Path(f"/proc/{self.process.pid}/cmdline").read_bytes():  # the kernel sets it after the exec
            pass
        self.executor.workers[self.process.pid] = SimpleNamespace(is_alive=lambda: True)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def report(self):
        self.executor.result_queue.put(("plain", "success", None))


@pytest.fixture
def plain_task():
    task = PlainTask(LocalEngine(1))
    yield task
    task.kill()


@pytest.mark.parametrize("hand_over", ["accept", "hand_over_unplaced"])
def test_a_plain_task_is_here_from_its_hand_over_to_the_end_that_its_worker_process_reports(plain_task, hand_over):
    arguments = (None,) if hand_over == "accept" else ()
    assert not plain_task.is_here("queued")
    getattr(plain_task.engine, hand_over)(plain_task.workload, *arguments)
    assert plain_task.is_here("queued")
    plain_task.engine.heartbeat()
    assert plain_task.is_here("queued"), "in the pipe"
    plain_task.take()
    assert plain_task.is_here("queued"), "a worker process takes it just now"
    plain_task.begin()
    assert plain_task.is_here("queued")
    assert plain_task.is_here("running")
    plain_task.kill()  # stands for the change of its title
    plain_task.report()
    assert list(plain_task.engine.collect()) == ["plain"]
    assert not plain_task.is_here("queued")
    assert not plain_task.is_here("running")


def test_a_plain_task_whose_worker_process_was_killed_is_not_here_any_more(plain_task):
    """LocalExecutor reports nothing about it."""
    plain_task.engine.accept(plain_task.workload, None)
    plain_task.engine.heartbeat()
    plain_task.take()
    plain_task.begin()
    plain_task.kill()
    assert not plain_task.is_here("running")


def test_another_run_of_a_plain_task_is_not_taken_for_the_one_that_is_here(plain_task):
    """Airflow gives a task that it resets or clears another id."""
    plain_task.engine.accept(plain_task.workload, None)
    assert not plain_task.is_here("queued", "second-run")
    plain_task.engine.heartbeat()
    plain_task.take()
    plain_task.begin()
    assert not any(plain_task.is_here(state, "second-run") for state in ("queued", "running", "restarting"))


def test_a_plain_task_that_airflow_revoked_is_not_here_any_more(plain_task):
    plain_task.engine.accept(plain_task.workload, None)
    plain_task.engine.heartbeat()
    assert not plain_task.engine.withdraw("plain"), "it is in the pipe"
    assert not plain_task.is_here("queued")


def test_a_callback_is_accepted_and_is_no_task(plain_task):
    callback = SimpleNamespace(key="callback")
    plain_task.executor.queue_workload = lambda workload, session: None
    plain_task.engine.accept(callback, None)
    assert not plain_task.engine.is_busy_with(SimpleNamespace(key="callback", id="callback", state="queued"))


def test_a_scheduler_that_stops_takes_back_the_tasks_that_no_worker_process_has_and_no_callback(plain_task):
    executor = plain_task.executor
    executor.workers = {1: SimpleNamespace(is_alive=lambda: True)}
    ti = SimpleNamespace(key="queued", id="second", priority_weight=1)
    in_pipe, callback = SimpleNamespace(key="test"), SimpleNamespace(key="callback")
    executor.activity_queue = PipeOf(plain_task.workload, in_pipe)
    executor._unread_messages.value = 2
    executor.queued_tasks["queued"] = ExecuteTask.model_construct(ti=ti)
    executor.queued_callbacks["callback"] = callback
    executor._check_workers = lambda: None
    assert plain_task.engine.take_back() == ["plain", "queued"]
    assert executor.activity_queue.content == [in_pipe, callback, None]
    assert (executor._unread_messages.value, executor.queued_tasks, executor.queued_callbacks) == (2, {}, {})


class PipeOf:
    """A queue for this process alone, of what no other process could be sent."""

    def __init__(self, *content):
        self.content, self._reader, self._rlock = list(content), self, Lock()

    def poll(self):
        return bool(self.content)

    def recv(self):
        return self.content.pop(0)

    def put(self, workload):
        self.content.append(workload)
