"""What lease files say of tasks and of local runs, and which devices these hold."""

import os
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from hetero_airflow.engines.host.held_devices import (
    HeldByLocalRun,
    LocalRunDevices,
    check_no_local_run,
    held_devices,
    live_lease_files,
    remove_ended_local_runs,
)
from hetero_airflow.engines.host.lease_files import (
    LeaseFile,
    current_process_namespace,
    process_identity,
    read_lease_files,
    recorded_lease,
)
from hetero_airflow.engines.host.lease_folders import lease_folders, local_runs_locked
from hetero_airflow.model.lease import Claim
from hetero_airflow.testing import a_cpu, a_device, a_worker


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def files() -> list[LeaseFile]:
    return list(read_lease_files().values())


def test_the_file_is_there_from_before_the_process_until_after_it():
    identity = process_identity(os.getpid())
    with recorded_lease("l/1", "worker-a") as note:
        before = LeaseFile(lease="l/1", worker="worker-a", place=current_process_namespace(), supervisor=identity)
        assert files() == [before]
        with subprocess.Popen(["/bin/sleep", "600"], process_group=0) as task:
            note.begin(task.pid)
            assert files() == [before.model_copy(update={"task": process_identity(task.pid)})]
            assert files()[0].task.is_running
            task.kill()
    assert files() == []
    assert [os.listdir(folder) for folder in lease_folders()] == [[]]


def test_the_file_stays_for_a_process_that_nothing_could_end():
    with subprocess.Popen(["/bin/sleep", "600"], process_group=0) as task:
        with recorded_lease("l1", "worker-a") as note:
            note.begin(task.pid)
        assert [file.lease for file in files()] == ["l1"]
        task.kill()


def test_the_file_goes_when_the_task_fails_to_start():
    with pytest.raises(RuntimeError), recorded_lease("l1", "worker-a"):
        raise RuntimeError
    assert files() == []


def test_only_this_user_reads_them():
    with recorded_lease("l1", "worker-a"):
        (folder,) = lease_folders()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_a_file_that_is_no_lease_file_is_skipped(caplog):
    with recorded_lease("l1", "worker-a"):
        (folder,) = lease_folders()
        (folder / "a.json").write_text("{}")
        (folder / ".half.json.1").write_text("{")
        assert [file.lease for file in files()] == ["l1"]
    assert caplog.text.count("can't be read") == 1


def test_a_process_differs_from_a_later_one_with_its_pid():
    identity = process_identity(os.getpid())
    assert (identity.is_running, identity.is_reused) == (True, False)
    later = identity.model_copy(update={"ticks": identity.ticks + 1})
    assert (later.is_running, later.is_reused) == (False, True)
    with subprocess.Popen(["sleep", "600"]) as ended:
        ended_identity = process_identity(ended.pid)
        ended.kill()
        ended.wait()
    assert (ended_identity.is_running, ended_identity.is_reused, process_identity(ended_identity.pid)) == (
        False,
        False,
        None,
    )


HALF, WHOLE = Claim("GPU-0", 500, 2**34), Claim("GPU-0", 1000, 2**35)

HOLD = """
import sys, time
from hetero_airflow.engines.host.lease_files import recorded_lease
from hetero_airflow.model.lease import Claim
with recorded_lease("killed", "host (local run)", claims=(Claim("GPU-0", 1000),), local_run="a.b"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_what_leases_hold_is_added_up():
    cores = Claim("cpu", 2000, 2**30, (0, 3))
    with (
        recorded_lease("l1", "host", claims=(HALF, cores)),
        recorded_lease("l2", "x (local run)", claims=(HALF,), local_run="d.t"),
    ):
        held = held_devices(live_lease_files())
    assert held.usage["GPU-0"].share_milli == 1000
    assert (held.cores, held.usage["cpu"].memory_bytes) == ({0, 3}, 2**30)
    pid = os.getpid()
    assert held.holders["GPU-0"] == (f"a task (process {pid})", f"the local run of d.t (process {pid})")
    assert not held.has_room_for([HALF])
    assert not held.has_room_for([Claim("cpu", 1000, 0, (3,))])
    assert held.has_room_for([Claim("GPU-1", 1000), Claim("cpu", 1000, 0, (1,))])


def test_a_task_does_not_start_on_a_device_of_a_local_run():
    with recorded_lease("local", "host (local run)", claims=(HALF,), local_run="d.t"):
        check_no_local_run("l1", (HALF, Claim("cpu", 1000, 0, (0,))))
        with pytest.raises(HeldByLocalRun, match=r"the local run of d\.t \(process"):
            check_no_local_run("l1", (WHOLE,))


def test_a_task_starts_beside_other_tasks_whatever_they_hold():
    with recorded_lease("l1", "host", claims=(WHOLE,)):
        check_no_local_run("l2", (WHOLE,))


def test_a_device_of_a_local_run_is_reported_as_not_leasable_and_the_cpu_stays():
    runs, worker = LocalRunDevices(), a_worker(devices=(a_device(id="GPU-0"), a_device(id="GPU-1", index=1), a_cpu()))
    assert not runs.look()
    assert runs.without_held(worker) == worker
    with recorded_lease("local", "host (local run)", claims=(HALF, Claim("cpu", 1000, 0, (0,))), local_run="d.t"):
        assert runs.look()
        assert not runs.look()
        devices = {device.id: device for device in runs.without_held(worker).devices}
        assert "the local run of d.t" in devices["GPU-0"].problem
        assert [device.leasable for device in devices.values()] == [False, True, True]
    assert runs.look()
    assert runs.without_held(worker) == worker


def test_what_a_killed_local_run_held_is_free_at_once():
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert "GPU-0" in held_devices(live_lease_files()).holders
        process.kill()
    assert held_devices(live_lease_files()).holders == {}
    assert len(read_lease_files()) == 1
    remove_ended_local_runs()
    assert read_lease_files() == {}


def test_two_local_runs_never_decide_at_the_same_time_and_a_killed_one_stops_none():
    script = (
        "from hetero_airflow.engines.host.lease_folders import local_runs_locked\nimport time\n"
        "with local_runs_locked():\n    print('locked', flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "locked\n"
        second = subprocess.Popen([sys.executable, "-c", script.replace("600", "0")], stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        assert second.poll() is None
        first.kill()
    with second:
        assert second.communicate(timeout=60)[0] == "locked\n"
    with local_runs_locked():
        pass
