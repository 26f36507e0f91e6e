"""Real processes leave their task in every way that daemons know; none outlives its run, or its supervisor for long."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from hetero_airflow.agent.lease_watch import GRACE_S, LeaseWatch
from hetero_airflow.engines.host.cgroups import can_create_groups
from hetero_airflow.engines.host.lease_files import LeaseFile
from hetero_airflow.engines.host.processes import process_identity
from tests.effort import effort, long
from tests.waiting import eventually

SUPERVISOR = """
import subprocess, sys, time
from types import SimpleNamespace
from hetero_airflow.contract.envelope import add_lease
from hetero_airflow.supervisor import coordinator, run_processes
from hetero_airflow.testing import a_task_lease

class Supervisor:
    final_state = "success"
    def __init__(self, task): self.task, self.pid = task, task.pid
    def attach_lease(self, lease, folder, run): self.run = run
    def wait(self):
        while self.task.poll() is None:
            self.run.check()
            time.sleep(0.05)

def start(target, **_):
    command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
    enter = lambda: run_processes.enter_run(*target.args)
    return Supervisor(subprocess.Popen(command, process_group=0, env={}, preexec_fn=enter))

coordinator.DeviceSupervisor.start = start
if sys.argv[3] == "without a control group":
    run_processes.create_group = lambda lease_id: None
names = dict(dag_id="dag", run_id="run", task_id="task", map_index=None)
lease = a_task_lease(id=sys.argv[4], worker="worker-a", simulated=True)
what = SimpleNamespace(**names, context_carrier=add_lease({}, lease))
client = SimpleNamespace(auth=None)
rest = {"dag_rel_path": None, "bundle_info": None, "client": client, "subprocess_logs_to_stdout": False}
coordinator.DeviceCoordinator().execute_task(what=what, **rest)
print("over", flush=True)
sys.stdin.read()
"""

WAIT = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
"""The program of the process that escapes: it writes its pid, and stays."""

ESCAPES = {
    "fork and setsid": "if os.fork() == 0: os.setsid(); stay()",
    "double fork": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: stay()
    os._exit(0)
""",
    "an empty environment": "subprocess.Popen(['setsid', 'env', '-i', sys.executable, '-c', WAIT, sys.argv[1]])",
    "multiprocessing with setsid": """
def run():
    os.setsid()
    stay()
multiprocessing.get_context('fork').Process(target=run).start()
""",
    "nohup from bash": """
bash = 'nohup "$0" -c "$1" "$2" > /dev/null 2>&1 &'
subprocess.run(["bash", "-c", bash, sys.executable, WAIT, sys.argv[1]])
""",
    "a new process group and a deaf daemon": """
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay()
""",
}

TASK = f"""
import multiprocessing, os, signal, subprocess, sys, time
WAIT = {WAIT!r}
def stay():
    exec(WAIT)
    os._exit(0)
%s
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]): time.sleep(0.01)
%s
os._exit(0)
"""


LEASE_ID = str(uuid4())
"""The name of a control group too, so that tests in other processes have others."""

needs_groups = pytest.mark.skipif(not can_create_groups(), reason="no control group can be created here")
GROUPS = ("without a control group", "with a control group")
WAYS = [
    pytest.param(escape, group, marks=[needs_groups] * (group == GROUPS[1])) for group in GROUPS for escape in ESCAPES
]
ENDED, KEPT = effort((WAYS[:2] + WAYS[8:9], WAYS[3:5] + WAYS[11:]), (WAYS, WAYS))
"""In short, each escape once over both tests."""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def supervise(tmp_path):
    """Starts a supervisor whose task escapes in that way: (the supervisor, the file with the pid that escaped)."""
    pid_file = tmp_path / "pid"
    started = []

    def start(escape: str, group: str, then: str = ""):
        command = [sys.executable, "-c", SUPERVISOR, TASK % (ESCAPES[escape], then), str(pid_file), group, LEASE_ID]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1], pid_file

    yield start
    with suppress(OSError, ValueError):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def lease_files(folder: Path) -> list[Path]:
    return list(folder.glob("hetero-airflow-leases-*/[!.]*.json"))


def names(path: Path, pid: int) -> bool:
    """Whether a lease file names a process, or the process group in which it still is."""
    content = LeaseFile.model_validate_json(path.read_bytes())
    return pid in {process.pid for process in content.members} or content.root.leader == os.getpgid(pid)


@long
@pytest.mark.parametrize(("escape", "group"), ENDED)
def test_a_process_that_escaped_is_ended_before_its_run_is_over(supervise, escape, group, tmp_path):
    supervisor, pid_file = supervise(escape, group)
    assert supervisor.stdout.readline() == "over\n"
    assert process_identity(int(pid_file.read_text())) is None
    assert lease_files(tmp_path) == []


@long
@pytest.mark.parametrize(("escape", "group"), KEPT)
def test_a_process_that_escaped_keeps_its_lease_when_the_supervisor_is_killed(supervise, escape, group, tmp_path):
    supervisor, pid_file = supervise(escape, group, then="time.sleep(600)")
    eventually(lambda: pid_file.exists() and pid_file.read_text())
    escaped = process_identity(int(pid_file.read_text()))
    eventually(lambda: any(names(path, escaped.pid) for path in lease_files(tmp_path)))
    supervisor.kill()
    supervisor.wait()
    watch = LeaseWatch("worker-a", clock=lambda: now)
    now = 0.0
    assert watch.live_leases() == {LEASE_ID}
    now = GRACE_S
    assert watch.live_leases() == {LEASE_ID} or not escaped.is_running
    eventually(lambda: not escaped.is_running)
    eventually(lambda: watch.live_leases() == frozenset())
    assert lease_files(tmp_path) == []
