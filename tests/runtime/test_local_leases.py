import os
import subprocess
import sys
import tempfile
import threading

import pytest

from hetero_airflow.engines.host.lease_files import read_lease_files, recorded_lease
from hetero_airflow.errors import DeviceUnavailable, NoLeaseError, RequestError
from hetero_airflow.model.device import NODE_KEY
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Place
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Inventory
from hetero_airflow.runtime import current_lease, local_lease, local_leases
from hetero_airflow.runtime.local_leases import decide_here, leased_here, local_worker
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import a_device, a_worker
from tests.open_node import process_that_opens

GPUS = ["simulated-nvidia-h100-80gb-0", "simulated-nvidia-h100-80gb-1"]


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HETERO_AIRFLOW_SIMULATED_DEVICES", "nvidia/h100-80gb:2")
    monkeypatch.delenv(LEASE_VARIABLE, raising=False)


def request(device, **others):
    return DeviceRequest.parse(device, **others)


def test_a_process_outside_of_airflow_gets_a_lease_and_gives_it_back():
    with local_lease(["a100", "gpu"], quota={"cpus": 1}) as lease:
        assert current_lease() == lease
        assert (lease.is_local_run, lease.simulated, lease.alternative, len(lease.cores)) == (True, True, 1, 1)
        assert "(local run): simulated-" in str(lease)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == lease.ids[0]
        assert [file.local_run for file in read_lease_files().values()] == [f"process {os.getpid()}"]
    assert read_lease_files() == {}
    with pytest.raises(NoLeaseError, match=r'hetero_airflow\.runtime\.local_lease\("gpu"\)'):
        current_lease()


def test_a_lease_lasts_until_it_is_released_and_a_process_has_one():
    held = local_lease("gpu")
    with pytest.raises(NoLeaseError, match="a lease that this process has already"):
        local_lease("gpu")
    held.release()
    held.release()
    local_lease("gpu:2").release()


@pytest.mark.parametrize("end", ["sys.exit()", "held.release()", "del held", "held.__exit__(None, None, None)"])
def test_a_fork_does_not_give_the_lease_of_its_parent_back(end, tmp_path):
    script = f"""
import os, sys
from hetero_airflow.engines.host.lease_files import read_lease_files
from hetero_airflow.runtime import local_lease
held = local_lease("gpu")
if os.fork() == 0:
    {end}
    sys.exit()
os.wait()
print("HELD", len(read_lease_files()))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, text=True, capture_output=True
    )
    assert "HELD 1" in result.stdout, result.stderr
    assert read_lease_files() == {}


def test_a_request_that_this_machine_can_never_satisfy_is_refused():
    with pytest.raises(DeviceUnavailable, match="model: asked nvidia/a100, found nvidia/h100-80gb"):
        local_lease("a100:4")
    with pytest.raises(RequestError, match='Did you mean "gpu"'):
        local_lease("gpuu")


def test_devices_of_a_scheduler_and_of_other_local_runs_are_not_taken():
    with (
        recorded_lease("task", "host", claims=(Claim(GPUS[0], 1000),)),
        leased_here(request("gpu"), "d.t", print) as (lease, _),
    ):
        assert lease.ids == (GPUS[1],)
        lines = []
        with (
            pytest.raises(DeviceUnavailable, match="within 1 s"),
            leased_here(request("gpu", wait_timeout="1s"), "d.u", lines.append),
        ):
            pass
        (line,) = lines
        assert "busy" in line
        assert "a task (process" in line
        assert "the local run of d.t (process" in line


def test_shares_of_one_device_go_to_several():
    half = request("gpu:0.5")
    with leased_here(half, "a", print) as (first, _), leased_here(half, "b", print) as (second, _):
        assert (first.share, second.share) == (0.5, 0.5)
        with leased_here(request("gpu"), "c", print) as (third, _):
            assert {*first.ids, *second.ids, *third.ids} == set(GPUS)


def test_cores_are_taken_from_the_end_so_that_a_scheduler_meets_them_last():
    cores = local_worker().cpu.cores
    with leased_here(request("cpu"), "a", print) as (lease, _):
        assert lease.cores == (cores[-1],)
        if len(cores) > 1:
            with leased_here(request("cpu"), "b", print) as (other, _):
                assert other.cores != lease.cores


def test_a_waiting_run_begins_when_the_devices_are_free():
    done = threading.Event()

    def use():
        with leased_here(request("gpu:2"), "b", print):
            done.set()

    with leased_here(request("gpu:2"), "a", print):
        thread = threading.Thread(target=use)
        thread.start()
        assert not done.wait(0.5)
    assert done.wait(600)
    thread.join()


def test_a_process_that_begins_to_use_a_device_after_the_discovery_is_seen(tmp_path, monkeypatch):
    node = tmp_path / "fpga0"
    node.touch()
    device = a_device(id="0000:65:00.1", vendor="xilinx", kind="fpga", details={NODE_KEY: str(node)})
    inventory = Inventory(worker=a_worker(devices=(device,)))
    monkeypatch.setattr(local_leases, "_inventory", lambda *key: inventory)
    assert local_worker().devices[0].leasable
    with process_that_opens(node):
        assert not local_worker().devices[0].leasable
    assert local_worker().devices[0].leasable


def test_a_question_takes_nothing():
    assert isinstance(decide_here(request("gpu:2")), Place)
    assert read_lease_files() == {}
