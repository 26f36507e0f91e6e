"""What a device task does before its process starts, beyond what a plain task does: each step delays the start."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_airflow.engines.host import lease_files
from hetero_airflow.engines.host.lease_files import LeaseInUse, recorded_lease
from hetero_airflow.engines.host.lease_folders import lease_folders
from hetero_airflow.engines.host.processes import process_identity
from hetero_airflow.supervisor.run_start import prepared_run
from hetero_airflow.testing import a_task_lease
from tests.open_node import process_that_opens

TASK = SimpleNamespace(dag_id="dag", task_id="task", run_id="run", map_index=None)
LEASE = a_task_lease(id="r1.7", worker="worker-a", simulated=True)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with recorded_lease("an earlier run", "worker-a"):
        pass
    return tmp_path


def test_no_start_reads_the_names_of_all_temporary_files(temporary_folder):
    """A host may have thousands of them, and reading them took longer than all other steps together."""
    read: list[str] = []
    is_recorded = True

    def record(event, arguments):
        if is_recorded and event in ("os.listdir", "os.scandir"):
            read.append(str(arguments[0]))

    sys.addaudithook(record)  # it stays until the process ends
    with prepared_run(TASK, LEASE, None):
        at_start = list(read)
    is_recorded = False
    assert str(temporary_folder) not in at_start
    assert str(temporary_folder) in read, "it looks for what killed supervisors left behind when the task is over"


def test_the_record_of_a_run_is_complete_when_it_is_written_first(monkeypatch):
    written, write_file = [], lease_files._write_file

    def write(path, content):
        written.append(content)
        return write_file(path, content)

    monkeypatch.setattr(lease_files, "_write_file", write)
    fpga = a_task_lease(id="r1.7", worker="worker-a", vendor="xilinx", kind="fpga", ids=("0000:65:00.1",), indexes=(0,))
    with prepared_run(TASK, fpga, None) as (run, _):
        (record,) = written
        assert (record.lease, record.devices, record.group) == ("r1.7", ("0000:65:00.1",), run.group)


def test_a_run_in_a_folder_with_another_name_is_seen_while_the_usual_name_is_taken(temporary_folder):
    (folder,) = lease_folders()
    folder.rmdir()
    folder.touch()
    with process_that_opens(folder) as first, recorded_lease("r1.7", "worker-a") as record:
        record.update(supervisor=process_identity(first.pid))
        with pytest.raises(LeaseInUse, match=f"a run under it that process {first.pid} supervises"):
            recorded_lease("r1.7", "worker-a").__enter__()
