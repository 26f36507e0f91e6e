"""Real processes keep a file open that stands in for a device node; NVML is played by the tests' replay."""

import os

import pynvml
import pytest

from hetero_airflow.discovery import device_users
from hetero_airflow.discovery.device_users import (
    current_users,
    join_users,
    lease_users,
    node_users,
    with_nodes,
    with_users,
)
from hetero_airflow.discovery.used_devices import UsedDevices, parse_processes
from hetero_airflow.errors import SettingsError
from hetero_airflow.model.device import NODE_KEY, UNCOVERED_KEY
from hetero_airflow.model.worker import Inventory
from hetero_airflow.testing import a_cpu, a_device, a_worker
from tests.discovery.test_nvidia import FakeNvml
from tests.open_node import process_that_opens


@pytest.fixture
def node(tmp_path):
    path = tmp_path / "fpga0"
    path.touch()
    return path


@pytest.fixture
def user(node):
    with process_that_opens(node) as process:
        yield process


def an_inventory(node, **details) -> Inventory:
    device = a_device(id="0000:65:00.1", vendor="xilinx", kind="fpga", details={NODE_KEY: str(node), **details})
    return Inventory(worker=a_worker(devices=(a_cpu(), device)))


def test_a_process_that_keeps_a_device_node_open_is_found_and_named(node, user):
    assert node_users({"a": str(node), "b": "/dev/nowhere"}).pids == {"a": {user.pid}, "b": set()}
    users = with_users(an_inventory(node), {}).users
    assert [(found_user.device_id, found_user.pid, found_user.name) for found_user in users] == [
        ("0000:65:00.1", user.pid, "sleep")
    ]
    user.kill()
    user.wait()
    assert with_users(an_inventory(node), {}).users == ()


def test_the_users_of_an_inventory_are_looked_up_again(node, user, monkeypatch):
    seen_before, empty = with_users(an_inventory(node), {}), an_inventory(node)
    assert [found.pid for found in current_users(empty)] == [user.pid]
    assert [found.pid for found in current_users(seen_before)] == [user.pid]
    user.kill()
    user.wait()
    assert current_users(seen_before) == []
    monkeypatch.setattr(device_users, "_has_command", lambda process: True)
    assert current_users(seen_before) == []


def no_lease(user):
    return False


def test_a_device_that_a_foreign_process_uses_gets_no_task_until_that_has_ended(node, user):
    inventory, used = with_users(an_inventory(node), {}), UsedDevices(())
    used.take(inventory.users, no_lease)
    device = used.without_used(inventory.worker).devices[1]
    owner = inventory.users[0].owner
    assert (device.leasable, device.problem) == (
        False,
        f"Used outside of all leases by process {user.pid} (sleep of {owner}). "
        "End them, or allow them with [hetero] allowed_device_processes.",
    )
    assert not used.has_changed
    user.kill()
    user.wait()
    assert used.has_changed
    used.take(with_users(an_inventory(node), {}).users, no_lease)
    assert used.without_used(inventory.worker) == inventory.worker
    assert not used.has_changed


@pytest.mark.parametrize("reason", ["a live lease", "allowed", "all allowed"])
def test_a_process_of_a_lease_and_one_that_is_allowed_hold_no_device(node, user, reason):
    inventory = with_users(an_inventory(node), {})
    used = UsedDevices({"allowed": {"sleep"}, "all allowed": {"*"}}.get(reason, ()))
    used.take(inventory.users, lambda found: reason == "a live lease" and found.pid == user.pid)
    assert used.without_used(inventory.worker) == inventory.worker


def test_a_process_that_nvml_lists_on_one_gpu_only_enumerates_the_others():
    opened = {"GPU-0": {7, 8}, "GPU-1": {7}}
    assert join_users({"GPU-0": (7,), "GPU-1": ()}, opened) == {"GPU-0": {7, 8}, "GPU-1": set()}


def test_nvml_tells_who_computes_and_who_draws_on_the_devices_of_a_lease(monkeypatch, node, user):
    gpu = {
        "nvmlDeviceGetComputeRunningProcesses": [{"pid": user.pid}],
        "nvmlDeviceGetGraphicsRunningProcesses": [{"pid": os.getpid()}],
    }
    nvml = FakeNvml({"system": {}, "gpus": [gpu]})
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: gpu
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    users = lease_users("nvidia", ["GPU-1"], [])
    assert {one.pid for one in users} == {user.pid, os.getpid()}
    gpu.clear()
    assert lease_users("nvidia", ["GPU-1"], []) is None


def test_where_neither_a_library_nor_a_node_tells_nobody_knows():
    assert pynvml
    assert lease_users("acme", ["a"], []) is None


def test_a_device_of_which_nobody_can_tell_who_uses_it_is_reported(node):
    without_node = Inventory(worker=a_worker(devices=(a_cpu(), a_device(id="a", vendor="acme"))))
    assert with_users(without_node, {}).worker.devices[1].details[UNCOVERED_KEY] is True
    assert UNCOVERED_KEY not in with_users(without_node, {"a": ()}).worker.devices[1].details
    simulated = Inventory(worker=a_worker(devices=(a_device(id="a", simulated=True),)))
    assert with_users(simulated, {}) == simulated


def test_a_device_on_the_pci_bus_has_the_node_that_the_kernel_made(tmp_path):
    (tmp_path / "sys/bus/pci/devices/0000:23:00.0/drm/renderD129").mkdir(parents=True)
    worker = with_nodes(a_worker(devices=(a_device(vendor="amd", pci="0000:23:00.0"),)), tmp_path)
    assert worker.devices[0].details[NODE_KEY] == "/dev/dri/renderD129"


def test_a_name_that_no_process_can_have_is_refused():
    assert parse_processes("Xorg, nvidia-persiste,") == {"Xorg", "nvidia-persiste"}
    with pytest.raises(SettingsError, match="nvidia-persistenced"):
        parse_processes("nvidia-persistenced")
