"""The agent finds real processes: a supervisor that forks its task, and programs in their own sessions."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from hetero_airflow.agent.lease_watch import ABANDONED_AFTER_S, GRACE_S, LeaseWatch
from hetero_airflow.discovery.used_devices import UsedDevices
from hetero_airflow.engines.host.lease_files import (
    current_process_namespace,
    process_identity,
    read_lease_files,
    recorded_lease,
)
from hetero_airflow.model.worker import DeviceUser
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import a_device, a_task_lease, a_worker
from tests.waiting import eventually

SUPERVISOR = """
import os, sys, time
from hetero_airflow.engines.host.lease_files import recorded_lease
with recorded_lease(sys.argv[1], sys.argv[2]) as note:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        if sys.argv[3] == "deaf":
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"ready\\n")
        time.sleep(600)
    os.setpgid(pid, pid)
    note.begin(pid)
    os.write(1, b"%d\\n" % pid)
    os.waitpid(pid, 0)
    time.sleep(0 if sys.argv[3] != "slow" else 600)
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def supervise():
    """Starts a supervisor and its task: (the supervisor, the pid of the task)."""
    started = []

    def start(lease_id="l1", worker_id="worker-a", manner="plain"):
        command = [sys.executable, "-c", SUPERVISOR, lease_id, worker_id, manner]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = {process.stdout.readline().strip() for _ in range(2)} - {"ready"}
        started.append((process, int(lines.pop())))
        return started[-1]

    yield start
    for process, pid in started:
        process.kill()
        process.wait()
        process.stdout.close()
        kill(pid)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


class Watch(LeaseWatch):
    """A watch with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__("worker-a", clock=lambda: self.now)


def test_a_host_without_tasks_has_no_leases():
    assert Watch().live_leases() == frozenset()


def test_a_lease_is_there_for_as_long_as_its_task(supervise):
    process, pid = supervise()
    watch = Watch()
    assert watch.live_leases() == {"l1"}
    kill(pid)
    process.wait()
    assert (watch.live_leases(), read_lease_files()) == (frozenset(), {})


def test_a_lease_is_there_before_its_process_is_and_it_shows_when_its_file_is_gone():
    watch = Watch()
    with recorded_lease("l1", "worker-a"):
        assert (watch.live_leases(), watch.has_files, watch.is_file_gone()) == ({"l1"}, True, False)
    assert watch.is_file_gone()
    assert (watch.live_leases(), watch.has_files, watch.is_file_gone()) == (frozenset(), False, False)


def test_a_supervisor_that_only_has_its_end_to_report_holds_nothing(supervise):
    _, pid = supervise(manner="slow")
    watch = Watch()
    assert watch.live_leases() == {"l1"}
    kill(pid)
    eventually(lambda: watch.live_leases() == frozenset())
    assert len(read_lease_files()) == 1


def test_a_program_in_a_session_of_its_own_counts_without_any_file(supervise):
    environment = {**os.environ, LEASE_VARIABLE: a_task_lease(id="l7", worker="worker-a").model_dump_json()}
    foreign_environment = {**os.environ, LEASE_VARIABLE: a_task_lease(id="l8", worker="worker-b").model_dump_json()}
    with (
        subprocess.Popen(["/bin/sleep", "600"], env=environment, start_new_session=True) as own_session,
        subprocess.Popen(["/bin/sleep", "600"], env=foreign_environment) as foreign,
    ):
        watch = Watch()
        eventually(lambda: watch.live_leases() == {"l7"})
        watch.now += 100
        assert watch.live_leases() == {"l7"}
        assert own_session.poll() is None, "no server has reported the end of its lease"
        watch.end(["l7"])
        assert own_session.wait(600) == -15
        assert foreign.poll() is None
        foreign.kill()


def test_a_task_whose_supervisor_was_killed_is_ended_and_forgotten(supervise, caplog):
    process, pid = supervise()
    watch = Watch()
    process.kill()
    process.wait()
    assert watch.live_leases() == {"l1"}
    assert f"Lease l1: its supervisor is gone. Its processes [{pid}] get SIGTERM." in caplog.text
    eventually(lambda: process_identity(pid) is None)
    assert (watch.live_leases(), read_lease_files()) == (frozenset(), {})


def test_a_task_that_does_not_heed_sigterm_is_killed_after_the_grace_time(supervise, caplog):
    process, pid = supervise(manner="deaf")
    watch = Watch()
    process.kill()
    process.wait()
    for _ in range(3):
        assert watch.live_leases() == {"l1"}
    watch.now += GRACE_S
    watch.live_leases()
    eventually(lambda: process_identity(pid) is None)
    assert watch.live_leases() == frozenset()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.rpartition(" get ")[2] for text in warnings] == ["SIGTERM.", "SIGKILL."]


def test_a_lease_that_is_over_is_ended_at_once_and_its_supervisor_reports(supervise):
    process, _ = supervise()
    watch = Watch()
    watch.live_leases()
    watch.end(["l1", "unknown here"])
    assert process.wait(600) == 0
    assert watch.live_leases() == frozenset()


def test_another_workers_leases_are_not_touched(supervise):
    process, pid = supervise(worker_id="worker-b")
    watch = Watch()
    watch.end(["l1"])
    assert watch.live_leases() == frozenset()
    process.kill()
    process.wait()
    watch.live_leases()
    assert process_identity(pid) is not None
    assert len(read_lease_files()) == 1


@pytest.mark.parametrize("change", ["another start of the host", "a pid that another process has"])
def test_files_of_the_past_name_no_process_of_now(supervise, change):
    process, pid = supervise()
    process.kill()
    process.wait()
    (path,) = read_lease_files()
    content = json.loads(path.read_text())
    if change == "another start of the host":
        content["place"] = f"another/{current_process_namespace()}"
    else:
        content["task"]["ticks"] -= 1
    path.write_text(json.dumps(content))
    assert Watch().live_leases() == frozenset()
    assert process_identity(pid) is not None
    assert read_lease_files() == {}


@pytest.mark.parametrize("age_s", [0, 2 * ABANDONED_AFTER_S])
def test_the_file_of_another_container_is_left_alone_while_somebody_touches_it(supervise, age_s):
    supervise()
    (path,) = read_lease_files()
    path.write_text(path.read_text().replace("pid:[", "pid:[9"))
    os.utime(path, (time.time() - age_s,) * 2)
    assert Watch().live_leases() == frozenset()
    assert path.exists() is (age_s == 0)


def test_a_cleanup_of_temporary_files_finds_no_old_lease_file(supervise):
    supervise()
    (path,) = read_lease_files()
    os.utime(path, (0, 0))
    Watch().live_leases()
    assert time.time() - path.stat().st_mtime < 60


OUTSIDE = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:], env={}).pid, flush=True); time.sleep(600)"


@pytest.fixture
def outside():
    """Starts a process outside of all leases that has a lease in its environment: (its pid, that of its child)."""
    started = []

    def start(lease_id=None):
        lease = (
            {} if lease_id is None else {LEASE_VARIABLE: a_task_lease(id=lease_id, worker="worker-a").model_dump_json()}
        )
        command = [sys.executable, "-c", OUTSIDE, "/bin/sleep", "600"]
        process = subprocess.Popen(command, env=os.environ | lease, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process.pid, int(process.stdout.readline())

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def rewrite(lease_id="l1", **changes):
    """Change the file of a lease."""
    (path,) = (path for path, file in read_lease_files().items() if file.lease == lease_id)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"devices": ["GPU-0"]} | changes))


def identity(pid, age=0):
    return {"pid": pid, "ticks": process_identity(pid).ticks - age}


def made_up_marker(supervise, outside, watch):
    supervise()
    return outside("made-up")[0], "GPU-0"


def copied_marker(supervise, outside, watch):
    supervise()
    return outside("l1")[0], "GPU-0"


def inherited_marker(supervise, outside, watch):
    supervise()
    return outside("l1")[1], "GPU-0"


def marker_of_a_run_that_is_over(supervise, outside, watch):
    process, pid = supervise()
    kill(pid)
    process.wait()
    return outside("l1")[0], "GPU-0"


def marker_of_an_orphaned_run_on_another_device(supervise, outside, watch):
    process, _ = supervise()
    kill_and_wait(process)
    rewrite()
    return outside("l1")[0], "GPU-1"


def task_of_another_airflow(supervise, outside, watch):
    return supervise("theirs", "worker-b")[1], "GPU-0"


def task_of_another_airflow_whose_worker_has_this_name(supervise, outside, watch):
    watch.note_unknown(["theirs"])
    return supervise("theirs")[1], "GPU-0"


def made_up_file(supervise, outside, watch):
    supervise("made-up")
    pid, _ = outside("made-up")
    rewrite("made-up", members=[identity(pid)])
    watch.note_unknown(["made-up"])
    return pid, "GPU-0"


def file_of_another_start_of_the_host(supervise, outside, watch):
    _, pid = supervise()
    rewrite(place=f"another/{current_process_namespace()}")
    return pid, "GPU-0"


def reused_pid_of_a_task(supervise, outside, watch):
    process, pid = supervise()
    kill_and_wait(process)
    rewrite(task=identity(pid, age=1))
    return pid, "GPU-0"


def reused_pid_of_a_member(supervise, outside, watch):
    supervise()
    pid, _ = outside()
    rewrite(members=[identity(pid, age=1)])
    return pid, "GPU-0"


def reused_pid_of_a_supervisor(supervise, outside, watch):
    supervise()
    parent, child = outside()
    rewrite(supervisor=identity(parent, age=1))
    return child, "GPU-0"


def file_of_a_run_that_is_over(supervise, outside, watch):
    _, pid = supervise(manner="slow")
    rewrite(is_over=True)
    return pid, "GPU-0"


FORGERIES = [
    made_up_marker, copied_marker, inherited_marker, marker_of_a_run_that_is_over,
    marker_of_an_orphaned_run_on_another_device, task_of_another_airflow,
    task_of_another_airflow_whose_worker_has_this_name, made_up_file, file_of_another_start_of_the_host,
    reused_pid_of_a_task, reused_pid_of_a_member, reused_pid_of_a_supervisor, file_of_a_run_that_is_over,
]  # fmt: skip


def kill_and_wait(process):
    process.kill()
    process.wait()


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_device_that_a_process_outside_of_all_leases_uses_gets_no_task(supervise, outside, forge):
    watch, used = Watch(), UsedDevices(())
    pid, device_id = forge(supervise, outside, watch)
    used.take([DeviceUser(device_id=device_id, pid=pid, name="python")], watch.current().include)
    worker = a_worker(devices=[a_device("GPU-0"), a_device("GPU-1", index=1)])
    assert [device.id for device in used.without_used(worker).devices if not device.leasable] == [device_id]


@pytest.mark.parametrize("who", ["task", "supervisor", "noted", "below the supervisor", "orphaned", "not seen here"])
def test_a_device_that_a_process_of_a_run_uses_is_no_foreign_one(supervise, outside, who):
    process, pid = supervise()
    rewrite()
    parent, child = outside("l1")
    if who == "noted":
        rewrite(members=[identity(parent)])
    elif who == "below the supervisor":
        rewrite(supervisor=identity(parent))
    elif who == "orphaned":
        kill_and_wait(process)
    pids = {"task": pid, "supervisor": process.pid, "not seen here": 2**22 + 7, "orphaned": parent}
    user = DeviceUser(device_id="GPU-0", pid=pids.get(who, child), name="" if who == "not seen here" else "python")
    assert Watch().current().include(user)
    assert not Watch().current().include(user.model_copy(update={"pid": 2**22 + 8, "device_id": "GPU-1"}))


def test_only_a_lease_that_the_server_did_not_name_before_is_news():
    watch = Watch()
    assert [watch.note_unknown(leases) for leases in ([], ["a"], ["a"], [], ["a"], ["a", "b"])] == [
        False, True, False, False, True, True
    ]  # fmt: skip


TASKS_USER, AGENTS_USER = 54_321, 54_322
NEEDED = (1, 5, 19)
"""CAP_DAC_OVERRIDE, CAP_KILL and CAP_SYS_PTRACE of <linux/capability.h>."""


def become(user: int, capabilities: tuple[int, ...] = ()) -> None:
    """Go on as another user, with these capabilities of root."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(8, 1)  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    bits = sum(1 << number for number in capabilities)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)
    assert libc.capset(header, sets) == 0


@contextmanager
def in_a_process(work: Callable[[Callable[[object], None]], None]) -> Iterator[Callable[[], object]]:
    """Does the work in a fork; the value waits for what it says next."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(lambda value: os.write(writer, json.dumps(value).encode() + b"\n"))
        except BaseException:  # noqa: BLE001  the test sees that nothing was said
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            yield lambda: json.loads(lines.readline())
    finally:
        kill(pid)
        os.waitpid(pid, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes other users")
def test_an_agent_of_another_user_ends_the_processes_of_the_tasks_user_and_no_others(monkeypatch):
    folder = tempfile.mkdtemp(dir="/tmp")
    os.chmod(folder, 0o1777)
    monkeypatch.setattr(tempfile, "tempdir", folder)

    def supervise(say):
        become(TASKS_USER)
        task = os.fork()
        if task == 0:
            os.setpgid(0, 0)
            time.sleep(60)
        with suppress(PermissionError):
            os.setpgid(task, task)
        with recorded_lease("own", "worker-a") as lease_file, recorded_lease("forged", "worker-a") as forged:
            lease_file.begin(task)
            forged.begin(victim.pid)
            say(task)
            os.waitpid(task, 0)
            time.sleep(60)

    def watch(say):
        become(AGENTS_USER, NEEDED)
        agent = LeaseWatch("worker-a", user=TASKS_USER)
        say(sorted(agent.live_leases()))
        agent.end(["own", "forged"])
        say("signals sent")
        time.sleep(60)

    victim = subprocess.Popen(["/bin/sleep", "60"], process_group=0)
    try:
        with in_a_process(supervise) as recorded:
            task = recorded()
            with in_a_process(watch) as seen:
                assert (seen(), seen()) == (["forged", "own"], "signals sent")
                eventually(lambda: process_identity(task) is None)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
        shutil.rmtree(folder)
