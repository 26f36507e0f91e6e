"""Where lease files are: in the places of a host, some of which any user can write to, and on disks that are full."""

import ctypes
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_airflow.contract.envelope import add_lease
from hetero_airflow.engines.host import lease_folders as places
from hetero_airflow.engines.host.lease_files import read_lease_files, recorded_lease, recorded_run
from hetero_airflow.engines.host.lease_folders import lease_folders
from hetero_airflow.errors import HeteroError
from hetero_airflow.supervisor.coordinator import DeviceCoordinator, DeviceSupervisor
from hetero_airflow.testing import a_task_lease

NAME = f"hetero-airflow-leases-{os.getuid()}"


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch) -> SimpleNamespace:
    """A host of its own: a temporary folder, a runtime directory, a file system in memory. The last two don't exist."""
    host = SimpleNamespace(temporary=tmp_path / "tmp", runtime=tmp_path / "run", memory=tmp_path / "shm")
    host.temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(host.temporary))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(host.runtime))
    monkeypatch.setattr(places, "_MEMORY", host.memory)
    return host


def leases() -> list[str]:
    return [file.lease for file in read_lease_files().values()]


def test_a_new_folder_is_in_the_users_runtime_directory(host):
    host.runtime.mkdir(mode=0o700)
    with recorded_lease("l1", "worker-a"):
        assert list(lease_folders()) == [host.runtime / NAME]
        assert stat.S_IMODE((host.runtime / NAME).stat().st_mode) == 0o700
        assert leases() == ["l1"]


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_runtime_directory_that_others_see_is_not_used(host, mode):
    host.runtime.mkdir()
    host.runtime.chmod(mode)
    with recorded_lease("l1", "worker-a"):
        assert list(lease_folders()) == [host.temporary / NAME]


def test_the_folder_of_an_earlier_version_stays_in_use(host):
    """During an upgrade an agent of that version looks nowhere else."""
    (host.temporary / NAME).mkdir(mode=0o700)
    host.runtime.mkdir(mode=0o700)
    with recorded_lease("l1", "worker-a"):
        assert [path.parent for path in read_lease_files()] == [host.temporary / NAME]


def test_a_process_finds_the_files_of_one_that_sees_no_runtime_directory(host):
    with recorded_lease("before the login", "worker-a"):
        host.runtime.mkdir(mode=0o700)
        (host.runtime / NAME).mkdir(mode=0o700)
        (host.runtime / NAME / "l2.json").write_text(next(iter(read_lease_files())).read_text().replace("before", "at"))
        assert leases() == ["before the login", "at the login"]


def test_a_file_that_went_with_the_users_last_login_is_written_again(host):
    host.runtime.mkdir(mode=0o700)
    with recorded_lease("l1", "worker-a") as record:
        for path in sorted(host.runtime.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        host.runtime.rmdir()
        assert leases() == []
        record.keep()
        assert [path.parent for path in read_lease_files()] == [host.temporary / NAME]
    assert leases() == []


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "another's"])
def test_a_taken_folder_name_stops_no_task(host, kind, tmp_path, caplog):
    path = host.temporary / NAME
    if kind == "a link":
        target = tmp_path / "elsewhere"
        target.mkdir(mode=0o700)
        path.symlink_to(target)
    elif kind == "a file":
        path.touch(0o600)
    else:
        path.mkdir()
        path.chmod(0o777 if kind == "open to others" else 0o700)
    if kind == "another's":
        if os.getuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(path, 12345, -1)
    with recorded_lease("l1", "worker-a"), recorded_lease("l2", "worker-a"):
        (folder,) = lease_folders()
        assert (folder.parent, folder != path, stat.S_IMODE(folder.stat().st_mode)) == (host.temporary, True, 0o700)
        assert leases() == ["l1", "l2"]
        assert recorded_run("l1") is not None
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"The folder {path} for this user's lease files can't be used; found" in warning
    assert f"{folder} is used instead. Remove the first one." in warning


def test_without_any_place_the_task_does_not_start(host):
    host.temporary.rmdir()
    places_and_remedy = (
        r"the folder of this user's leases can't be used; found .*run: nothing; .*tmp: .*; .*shm: .* Free disk space"
    )
    with pytest.raises(HeteroError, match=places_and_remedy):
        recorded_lease("l1", "worker-a").__enter__()


@contextmanager
def full_disk(path: Path) -> Iterator[Path]:
    """A real file system of two pages without a free byte; without the file of the value it has space again."""
    path.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(path), b"tmpfs", 0, b"size=8k,mode=1777") != 0:
        pytest.skip("only root mounts a file system")
    filler = path / "filler"
    filler.write_bytes(b"x" * 8192)
    try:
        yield filler
    finally:
        libc.umount2(bytes(path), 2)


def test_the_record_is_in_memory_while_the_disk_is_full(host):
    host.memory.mkdir()
    with (
        full_disk(host.temporary),
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as task,
        recorded_lease("l1", "worker-a") as record,
    ):
        record.begin(task.pid)
        ((path, file),) = read_lease_files().items()
        assert (path.parent, file.lease, file.task.pid) == (host.memory / NAME, "l1", task.pid)
        task.communicate(b"\n")
    assert list((host.memory / NAME).iterdir()) == []


def test_a_disk_that_fills_up_delays_the_name_of_the_process(host, caplog):
    with (
        full_disk(host.temporary) as filler,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as task,
    ):
        filler.unlink()
        with recorded_lease("l1", "worker-a") as record:
            filler.write_bytes(b"x" * 4096)
            record.begin(task.pid)
            assert (recorded_run("l1").task, recorded_run("l1").is_starting) == (None, True)
            assert "it is tried again" in caplog.text
            assert "No space left on device" in caplog.text
            filler.unlink()
            record.keep()
            assert recorded_run("l1").task.pid == task.pid
            task.communicate(b"\n")


def test_a_task_that_can_not_be_recorded_does_not_start_and_its_log_says_why(host, monkeypatch):
    started, lines = [], []
    monkeypatch.setattr(DeviceSupervisor, "start", lambda **_: started.append(1))
    carrier = add_lease({}, a_task_lease(id="l1"))
    what = SimpleNamespace(context_carrier=carrier, dag_id="dag", task_id="task", run_id="run", map_index=None)
    logger = SimpleNamespace(error=lambda text, **values: lines.append((text, values)))
    options = {"dag_rel_path": None, "bundle_info": None, "client": None, "subprocess_logs_to_stdout": False}
    with full_disk(host.temporary), pytest.raises(HeteroError, match="No space left on device"):
        DeviceCoordinator().execute_task(what=what, logger=logger, **options)
    assert started == []
    ((text, values),) = lines
    assert text == "The task does not start"
    assert "Free disk space in" in values["reason"]
