"""The end of a run whose device another process uses: a real process, and a real file as the device node."""

import subprocess
import tempfile
import threading
import time
from contextlib import closing

import pytest

from hetero_airflow.discovery import device_users
from hetero_airflow.discovery.device_users import with_users
from hetero_airflow.discovery.inventory_watch import InventoryWatch
from hetero_airflow.discovery.readings_watch import ReadingsWatch
from hetero_airflow.engines.engine import LeasedProcess, Liveness
from hetero_airflow.engines.host.cgroups import create_group
from hetero_airflow.engines.host.lease_files import read_lease_files, recorded_lease
from hetero_airflow.engines.host.processes import process_identity
from hetero_airflow.engines.local import LocalEngine
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.executor.device_health.host_inventory import HostInventory
from hetero_airflow.model.device import NODE_KEY
from hetero_airflow.model.worker import Inventory
from hetero_airflow.supervisor import run_processes
from hetero_airflow.supervisor.run_processes import contained_run
from hetero_airflow.testing import a_device, a_lease, a_task_lease, a_worker
from tests.open_node import process_that_opens

LIVE = ("l1", "killed")
"""The leases that the store knows."""


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "fpga0"
    path.touch()
    return path


@pytest.fixture
def inventory(monkeypatch):
    """That of the scheduler. It starts no readers, which would be children of a supervisor: both are this process."""
    monkeypatch.setattr(ReadingsWatch, "ask", lambda watch: None)
    with closing(HostInventory(read_configuration(), lambda: LIVE)) as made:
        yield made


@pytest.fixture
def user(node):
    with process_that_opens(node) as process:
        yield process


def run_a_task(node, worker="worker-a"):
    lease = a_task_lease(
        id="l1", worker=worker, vendor="xilinx", kind="fpga", ids=("0000:65:00.1",), indexes=(0,), nodes=(str(node),)
    )
    with contained_run(lease, None) as run, subprocess.Popen(["true"], process_group=0) as task:
        run.begin(task.pid)
        task.wait()
        run.end()


def test_a_device_that_nobody_uses_is_free_at_once(node, monkeypatch):
    monkeypatch.setattr(device_users, "_has_command", lambda process: False)  # all processes count as readable
    run_a_task(node)
    assert read_lease_files() == {}


def test_nobody_is_asked_to_look_at_the_devices_of_a_local_run(node, user, monkeypatch):
    monkeypatch.setattr(run_processes, "_CHECK_S", 3600)
    run_a_task(node, "laptop (local run)")
    assert read_lease_files() == {}


def test_a_lease_counts_until_somebody_has_looked_at_a_device_that_another_process_uses(
    node, user, inventory, monkeypatch
):
    host = read_configuration().worker_id
    device = a_device(id="0000:65:00.1", vendor="xilinx", kind="fpga", details={NODE_KEY: str(node)})
    found = Inventory(worker=a_worker(id=host, devices=(device,)))
    results = []

    def poll(watch):
        if not watch._is_wanted:
            return None
        watch._is_wanted, watch.looked_at = False, time.monotonic()
        return with_users(found, {})

    monkeypatch.setattr(InventoryWatch, "poll", poll)
    engine = LocalEngine(1)
    lease = LeasedProcess(a_lease().model_copy(update={"id": "l1"}), is_ours=True)
    run = threading.Thread(target=run_a_task, args=(node, host))
    run.start()
    while not read_lease_files():
        time.sleep(0.01)
    end = time.monotonic() + 600
    while not results and time.monotonic() < end:
        assert engine.liveness_of([lease]) == {"l1": Liveness.ALIVE}
        results += [result for result in [inventory.poll()] if result is not None]
        time.sleep(0.05)
    (held,) = results[0].worker.devices
    assert not held.leasable
    assert f"process {user.pid} (sleep" in held.problem
    assert run.is_alive(), "the engine hears nothing of the end before the device is out of scheduling"
    assert engine.liveness_of([lease]) == {"l1": Liveness.ALIVE}
    inventory.note_recorded()
    run.join(600)
    assert not run.is_alive()
    assert engine.liveness_of([lease]) == {"l1": Liveness.GONE}
    user.kill()
    user.wait()
    inventory._look_at = 0.0
    (free,) = inventory.poll().worker.devices
    assert free.leasable


@pytest.mark.parametrize("lease_id", ["l1", "of another Airflow", "of a local run"])
def test_a_scheduler_takes_only_the_runs_of_leases_that_it_knows_and_local_runs_for_no_foreign_users(
    node, user, inventory, lease_id, monkeypatch
):
    host = read_configuration().worker_id
    device = a_device(id="0000:65:00.1", vendor="xilinx", kind="fpga", details={NODE_KEY: str(node)})
    found = with_users(Inventory(worker=a_worker(id=host, devices=(device,))), {})
    monkeypatch.setattr(InventoryWatch, "poll", lambda watch: found)
    with recorded_lease(lease_id, host, local_run="dag.test()" if lease_id == "of a local run" else "") as record:
        record.begin(user.pid)
        record.update(members=(process_identity(user.pid),))
        (device,) = inventory.poll().worker.devices
    assert device.leasable is (lease_id != "of another Airflow")


def test_nothing_stays_of_a_run_whose_supervisor_was_killed(node, user, inventory):
    group = create_group("killed")
    with recorded_lease("killed", read_configuration().worker_id) as record:
        record.update(supervisor=process_identity(user.pid), task=process_identity(user.pid), group=group)
        inventory._look_at_leases()
        assert [file.lease for file in read_lease_files().values()] == ["killed"]
        user.kill()
        user.wait()
        inventory._look_at_leases()
        assert read_lease_files() == {}
        assert group is None or not group.exists()
