from __future__ import annotations

import os
import stat
import subprocess
import tempfile

import pytest

from hetero_airflow.engines.lease_files import (
    LeaseFile,
    current_process_namespace,
    process_identity,
    read_lease_files,
    recorded_lease,
)
from hetero_airflow.engines.lease_folders import lease_folders


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


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
