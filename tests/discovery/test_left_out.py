"""Devices that an agent leaves to others: by the variables with which it was started, and by its setting."""

import json
import subprocess
import sys

import pytest

from hetero_airflow.discovery import amd, ascend, google, nvidia
from hetero_airflow.discovery.device_users import with_users
from hetero_airflow.discovery.inventory_watch import COMMAND
from hetero_airflow.discovery.left_out import agent_variables, with_excluded
from hetero_airflow.model.device import LEFT_OUT_KEY, SICK_KEY
from hetero_airflow.model.worker import Inventory
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import a_cpu, a_device, a_worker

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def nvidia_devices(variables, names=(A100,) * 4, **fields):
    gpus = [
        {"index": n, "name": name, "uuid": f"GPU-{n}{n}aaaaaa-0000", "memory": {"total": 1 << 36, "free": 1}} | fields
        for n, name in enumerate(names)
    ]
    return nvidia.parse({"gpus": gpus, "environment": variables}).devices


def offered(devices):
    return [device.index for device in devices if device.leasable]


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("2,3", [2, 3]),
        (" 3 , 0", [0, 3]),
        ("1gpu,2", [1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [1]),
        ("1,9,2", [1]),
        ("1,1", []),
        ("GPU-22", [2]),
        ("GPU-22aaaaaa-0000,GPU-0", [0, 2]),
        ("GPU-22,3", [2]),
        ("2,GPU-0", [2]),
        ("GPU-", []),
        ("gpu-22", []),
    ],
)
def test_cuda_shows_the_gpus_up_to_the_first_unknown_word(text, indexes):
    devices = nvidia_devices({"CUDA_VISIBLE_DEVICES": text})
    assert offered(devices) == indexes
    words = f"It is left out by CUDA_VISIBLE_DEVICES={text} of the agent."
    assert all(device.problem == words and device.details[LEFT_OUT_KEY] for device in devices if not device.leasable)


@pytest.mark.parametrize(
    ("text", "order", "indexes"),
    [("1", None, []), ("1", "FASTEST_FIRST", []), ("1", "PCI_BUS_ID", [1]), ("GPU-11", None, [1]), ("", None, [])],
)
def test_numbers_of_gpus_of_several_models_need_the_order_of_the_bus(text, order, indexes):
    variables = {"CUDA_VISIBLE_DEVICES": text} | ({"CUDA_DEVICE_ORDER": order} if order else {})
    devices = nvidia_devices(variables, (A100, H100))
    assert offered(devices) == indexes
    is_unsure = text == "1" and not indexes
    assert ("or set CUDA_DEVICE_ORDER=PCI_BUS_ID" in devices[0].problem) == is_unsure


@pytest.mark.parametrize(
    ("text", "ids"), [("MIG-b", ["MIG-b"]), ("GPU-00", ["MIG-a", "MIG-b"]), ("0", []), ("MIG-", [])]
)
def test_instances_are_named_by_their_uuids_or_by_that_of_their_gpu(text, ids):
    mig = [{"index": n, "uuid": f"MIG-{name}", "name": "x MIG 1g.10gb"} for n, name in enumerate("ab")]
    devices = nvidia_devices({"CUDA_VISIBLE_DEVICES": text}, (A100,), mig=mig, mig_mode=(1, 1))
    assert [device.id for device in devices if device.leasable] == ids


def test_a_gpu_keeps_its_own_problem_beside_that_it_is_left_out():
    (device,) = nvidia_devices({"CUDA_VISIBLE_DEVICES": ""}, (A100,), recovery_action=1)
    assert device.problem == (
        "The driver says that the GPU asks to be reset; drain it and do so. "
        "It is left out by CUDA_VISIBLE_DEVICES= of the agent."
    )
    assert SICK_KEY not in device.details


@pytest.mark.parametrize(
    ("variables", "indexes"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "2,0000:03:00.0,1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "1,1,2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000011"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-00000000000000,1"}, []),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}, [0]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5c89852c-d268"}, []),
    ],
)
def test_rocr_selects_first_and_hip_counts_what_is_left(variables, indexes):
    static = [
        {
            "gpu": n,
            "asic": {"market_name": "AMD Instinct MI210"},
            "bus": {"bdf": f"0000:0{n}:00.0"},
            "vram": {"size": 9},
        }
        for n in range(4)
    ]
    kfd = [{"simd_count": 416, "location_id": n << 8, "unique_id": 16 + n} for n in range(4)]
    devices = amd.parse(static, [], (), kfd, variables).devices
    assert offered(devices) == indexes
    if len(variables) == 2 and "ROCR_VISIBLE_DEVICES" in variables:
        words = "ROCR_VISIBLE_DEVICES=2,3 and HIP_VISIBLE_DEVICES=1"
        assert devices[0].problem == f"It is left out by {words} of the agent."


@pytest.mark.parametrize(("text", "indexes"), [("1", [1]), ("1,0", [0, 1]), ("0,2,1", [0]), ("", [])])
def test_ascend_counts_the_chips_of_the_container(fixture_text, text, indexes):
    info = fixture_text("ascend/npu-smi-info-26.txt")
    assert offered(ascend.parse(info, "", {"ASCEND_RT_VISIBLE_DEVICES": text}).devices) == indexes


@pytest.mark.parametrize(
    ("name", "variables", "indexes"),
    [
        ("tpu7x", {"TPU_VISIBLE_CHIPS": "1,3"}, [1, 3]),
        ("tpu7x", {"TPU_VISIBLE_DEVICES": "1,3"}, []),
        ("v4", {"TPU_VISIBLE_DEVICES": "1"}, [1]),
        ("v4", {"TPU_VISIBLE_CHIPS": "0", "TPU_VISIBLE_DEVICES": "1"}, [0]),
    ],
)
def test_libtpu_counts_chips(fixture_tree, name, variables, indexes):
    assert offered(google.parse(google.read(fixture_tree(f"google/{name}.json")), variables).devices) == indexes


def test_the_variables_of_a_lease_are_not_those_of_the_agent():
    assert agent_variables({"CUDA_VISIBLE_DEVICES": "1", "HOME": "/"}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert agent_variables({"CUDA_VISIBLE_DEVICES": "1", LEASE_VARIABLE: "{}"}) == {}


DEVICES = (
    a_cpu(),
    a_device("GPU-0", model="tesla-t4", pci="0000:07:00.0"),
    a_device("GPU-1", pci="0000:0f:00.0"),
    a_device("MIG-1", pci="0000:0f:00.0", parent="GPU-1", partition="1g.10gb"),
)


@pytest.mark.parametrize(
    ("setting", "ids", "unknown"),
    [
        ("", [], []),
        ("GPU-0", ["GPU-0"], []),
        ("gpu-1 , t4", ["GPU-0", "GPU-1", "MIG-1"], []),
        ("00000000:0F:00.0", ["GPU-1", "MIG-1"], []),
        ("nvidia", ["GPU-0", "GPU-1", "MIG-1"], []),
        ("tesla-t4", ["GPU-0"], []),
        ("mig-1g.10gb", ["MIG-1"], []),
        ("amd, GPU-0, t4:1,,???", ["GPU-0"], ["amd", "t4:1", "???"]),
    ],
)
def test_the_devices_of_the_setting_stay_visible_and_get_no_task(setting, ids, unknown):
    inventory = with_excluded(Inventory(worker=a_worker(devices=DEVICES)), setting)
    assert [device.id for device in inventory.worker.devices] == [device.id for device in DEVICES]
    marked = [device for device in inventory.worker.devices if not device.leasable]
    assert [device.id for device in marked] == ids
    assert {device.problem for device in marked} <= {"It is left out by [hetero] exclude_devices."}
    assert inventory.problems == inventory.worker.problems
    assert [line.split(" names no ")[0] for line in inventory.problems] == [
        f"exclude_devices: {entry!r}" for entry in unknown
    ]


def test_the_lines_of_a_vendor_that_the_setting_names_are_left_out():
    lines = ("intel: 1 × Intel GPU", "nvidia: GPU 0 does not answer")
    inventory = Inventory(worker=a_worker(devices=DEVICES, problems=lines), problems=lines)
    excluded = with_excluded(inventory, "intel")
    assert (excluded.problems, excluded.worker.problems) == (lines[1:], lines[1:])
    assert all(device.leasable for device in excluded.worker.devices)


def test_processes_on_a_device_that_is_left_out_are_no_concern():
    inventory = Inventory(worker=a_worker(devices=DEVICES[:3]))
    pids = {"GPU-0": [1], "GPU-1": [1]}
    assert [user.device_id for user in with_users(inventory, pids).users] == ["GPU-0", "GPU-1"]
    excluded = with_users(with_excluded(inventory, "GPU-0"), pids)
    assert [user.device_id for user in excluded.users] == ["GPU-1"]


def test_the_setting_reaches_discovery(monkeypatch):
    monkeypatch.setenv("HETERO_AIRFLOW_SIMULATED_DEVICES", "nvidia/t4:1,nvidia/h100-80gb:1")
    command = [sys.executable, *COMMAND[1:], "w", "{}", "60", "t4"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    leasable = {device["model"]: device["leasable"] for device in answer["worker"]["devices"] if device["simulated"]}
    assert leasable == {"t4": False, "h100-80gb": True}
