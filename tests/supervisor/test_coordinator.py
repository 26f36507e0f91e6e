"""What the coordinator does around Airflow's supervisor: a stand-in with a real process plays the supervisor."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.api.client import Client
from airflow.sdk.exceptions import TaskAlreadyRunningError

from hetero_airflow.checkpoints.fencing import KEY
from hetero_airflow.contract.envelope import add_lease
from hetero_airflow.contract.executor_names import COORDINATOR_CLASSPATH
from hetero_airflow.contract.task_lease import lease_claims
from hetero_airflow.contract.task_secret import wrapped
from hetero_airflow.engines.host.lease_files import (
    LeaseFile,
    current_process_namespace,
    process_identity,
    read_lease_files,
)
from hetero_airflow.errors import GrantRefused
from hetero_airflow.settings import CONTROL_VARIABLE, LEASE_VARIABLE, TASK_SECRET_VARIABLE
from hetero_airflow.supervisor import coordinator
from hetero_airflow.supervisor.run_start import control_folder
from hetero_airflow.testing import a_signer, a_task_lease

LEASE = a_task_lease(id="r1.7", worker="worker-a", simulated=True)
CLIENT = Client(base_url="http://localhost", token="of the message")
TASK = {"dag_id": "dag", "task_id": "task", "run_id": "run", "map_index": None}


class StandInSupervisor:
    """Starts a process that waits for ever, and says what it finds around it."""

    final_state = "success"

    def __init__(self, pid: int, seen: list) -> None:
        self.pid, self._seen = pid, seen

    def attach_lease(self, lease, folder, run) -> None:
        self._seen.append((lease.id, str(folder)))

    def wait(self) -> int:
        self._seen.append(list(read_lease_files().values()))
        return 0


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Executes a workload with that carrier: (what was seen, the task's process, the result)."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started = []

    def execute(carrier):
        seen = []

        def start(**_):
            seen.append(list(read_lease_files().values()))
            seen.append((os.environ.get(LEASE_VARIABLE), os.environ[CONTROL_VARIABLE]))
            secrets.append(os.environ.get(TASK_SECRET_VARIABLE))
            started.append(subprocess.Popen(["/bin/sleep", "600"], process_group=0))
            return StandInSupervisor(started[-1].pid, seen)

        monkeypatch.setattr(coordinator.DeviceSupervisor, "start", start)
        what = SimpleNamespace(context_carrier=carrier, **TASK)
        options = {"dag_rel_path": None, "bundle_info": None, "client": CLIENT, "subprocess_logs_to_stdout": False}
        return seen, coordinator.DeviceCoordinator().execute_task(what=what, **options), started[-1]

    execute.secrets = secrets = []
    yield execute
    for process in started:
        process.kill()
        process.wait()


def test_the_agent_can_see_the_lease_from_before_the_task_begins_until_nothing_is_left_of_it(run):
    seen, result, process = run(add_lease({}, LEASE))
    before = LeaseFile(
        lease="r1.7",
        worker="worker-a",
        place=current_process_namespace(),
        supervisor=process_identity(os.getpid()),
        claims=lease_claims(LEASE),
    )
    (at_start, (lease_text, folder), (attached, control), at_work) = seen
    assert [file.model_copy(update={"group": None}) for file in at_start] == [before]
    assert (lease_text, attached, control) == (LEASE.model_dump_json(), "r1.7", folder)
    assert [(file.lease, file.task.pid) for file in at_work] == [("r1.7", process.pid)]
    assert process.wait(600) == -15, "it outlived its task"
    assert read_lease_files() == {}
    assert (result.exit_code, os.path.exists(folder), LEASE_VARIABLE in os.environ) == (0, False, False)


def granted(seconds: float = 60, signer=None, **changes) -> dict:
    """A carrier with a lease that a scheduler granted to the task, to begin within these seconds."""
    start_by = int(time.time() + seconds)
    grant = (signer or a_signer()).sign(lease=LEASE.id, token=LEASE.token, task="dag/task/run/-1", start_by=start_by)
    return add_lease({}, LEASE.model_copy(update={"grant": grant.pack(), **changes}))


def test_the_task_gets_the_secret_that_only_its_token_decrypts(run):
    secret = bytes(range(32))
    for token in ("of the message", "of another message"):
        run(add_lease({}, LEASE.model_copy(update={"secret": wrapped(secret, token)})))
    run(add_lease({}, LEASE))
    run({})
    assert run.secrets == [secret.hex(), "", "", None]
    assert TASK_SECRET_VARIABLE not in os.environ


def test_a_task_with_a_grant_begins(run):
    _, result, _ = run(granted())
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("grant", "found"),
    [
        (
            {"seconds": -3600},
            r"can't begin a run of dag/task/run/-1 under lease r1.7; found a grant that ended \d+ s ago",
        ),
        (
            {"token": 10**6},
            "Token 1000000 for dag/task/run/-1 can't be used; found a grant whose signature does not fit",
        ),
        ({"id": "r1.8"}, "a grant whose signature does not fit"),
        ({"grant": "rubbish"}, "found no grant: 'rubbish'"),
        ({"grant": "1.2.3"}, "a grant whose signature does not fit"),
    ],
)
def test_a_grant_that_is_late_or_forged_begins_nothing(run, grant, found):
    with pytest.raises(GrantRefused, match=found):
        run(granted(**grant))
    assert read_lease_files() == {}


def test_a_message_that_comes_twice_begins_nothing_and_the_first_run_stays_recorded(run):
    with subprocess.Popen([sys.executable, "-c", FIRST_RUN], stdin=-1, stdout=-1, text=True) as first:
        first.stdout.readline()
        (before,) = read_lease_files().values()
        assert before.supervisor.pid == first.pid
        with pytest.raises(
            TaskAlreadyRunningError, match=f"r1.7; found a run under it that process {first.pid} superv"
        ):
            run(granted())
        assert list(read_lease_files().values()) == [before]
        first.communicate("\n")
    assert read_lease_files() == {}
    _, result, _ = run(granted())
    assert result.exit_code == 0


def test_the_folder_of_checkpoints_has_the_schedulers_key_before_the_task_begins(run, tmp_path, monkeypatch):
    """Another key in the default folder is of a former database; in a configured folder it may be of others."""
    former, signer, recorded = a_signer(), a_signer(), []
    start = StandInSupervisor.attach_lease
    monkeypatch.setattr(
        StandInSupervisor,
        "attach_lease",
        lambda *arguments: (recorded.append((folder / KEY).read_text()), start(*arguments)),
    )
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    folder = tmp_path / "checkpoints"
    for key in (former, signer):
        run(granted(signer=key))
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", (tmp_path / "shared").as_uri())
    folder = tmp_path / "shared"
    for key in (former, signer):
        run(granted(signer=key))
    keys = [former.public_key, signer.public_key]
    assert recorded == [*keys, keys[0], keys[0]]


def test_a_host_whose_folder_of_checkpoints_cant_be_written_runs_tasks_nevertheless(run, tmp_path, monkeypatch):
    (tmp_path / "checkpoints").write_text("no folder")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    _, result, _ = run(granted())
    assert result.exit_code == 0


def test_a_task_without_a_lease_has_no_file(run):
    seen, _, process = run({})
    assert [seen[0], seen[1][0], seen[2]] == [[], None, []]
    assert process.poll() is None


FIRST_RUN = """
from hetero_airflow.engines.host.lease_files import recorded_lease
with recorded_lease("r1.7", "worker-a"):
    print("recorded", flush=True)
    input()
"""

A_SUPERVISOR = """
from hetero_airflow.supervisor.run_start import control_folder
with control_folder() as folder:
    print(folder, flush=True)
    input()
"""


def test_the_folder_of_a_killed_supervisor_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    arguments = {"env": environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", A_SUPERVISOR], **arguments) as killed,
        subprocess.Popen([sys.executable, "-c", A_SUPERVISOR], **arguments) as living,
    ):
        abandoned, used = (Path(process.stdout.readline().strip()) for process in (killed, living))
        (abandoned / "progress").touch()
        killed.kill()
        killed.wait()
        for folder in (abandoned, used):
            os.utime(folder, (0, 0))
        with control_folder():
            pass
        assert (abandoned.exists(), used.exists()) == (False, True)
        living.communicate("\n")
    assert list(tmp_path.iterdir()) == []


def test_the_classpath_of_the_settings_names_the_coordinator():
    assert import_string(COORDINATOR_CLASSPATH) is coordinator.DeviceCoordinator
