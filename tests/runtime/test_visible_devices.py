import os

import pytest

from hetero_airflow.errors import NoLeaseError
from hetero_airflow.runtime import current_lease, torch_device
from hetero_airflow.runtime.visible_devices import bound_to_lease, lease_environment
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import a_task_lease

HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ASCEND_RT_VISIBLE_DEVICES": "",
    "TPU_VISIBLE_CHIPS": "",
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"vendor": "amd"}, {"ROCR_VISIBLE_DEVICES": "GPU-b,GPU-a", "HIP_VISIBLE_DEVICES": "0,1"}),
        (
            {"vendor": "amd", "ids": ("0000:03:00.0", "GPU-0c58123456789abc")},
            {"ROCR_VISIBLE_DEVICES": "2,GPU-0c58123456789abc", "HIP_VISIBLE_DEVICES": "0,1"},
        ),
        (
            {"vendor": "amd", "ids": ("simulated-amd-mi300x-0",), "indexes": (0,), "simulated": True},
            {"ROCR_VISIBLE_DEVICES": "simulated-amd-mi300x-0", "HIP_VISIBLE_DEVICES": "0"},
        ),
        (
            {"ids": ("54bc4e7e-0000-0000-0000-000000000001",), "indexes": (0,)},
            {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ),
        ({"vendor": "ascend", "kind": "npu"}, {"ASCEND_RT_VISIBLE_DEVICES": "2,5"}),
        (
            {"vendor": "google", "kind": "tpu"},
            {
                "TPU_VISIBLE_CHIPS": "2,5",
                "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1",
                "TPU_PROCESS_BOUNDS": "1,1,1",
            },
        ),
        ({"vendor": "xilinx", "kind": "fpga"}, {}),
        ({"vendor": "intel", "kind": "cpu", "cores": (4, 5, 6)}, {"OMP_NUM_THREADS": "3"}),
        (
            {"share": 0.25},
            {
                "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.25",
                "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25",
            },
        ),
    ],
)
def test_each_vendor_sees_its_own_devices_and_no_other_vendor_any(fields, expected):
    lease = a_task_lease(**fields)
    assert lease_environment(lease) == {LEASE_VARIABLE: lease.model_dump_json(), **HIDDEN, **expected}


def test_the_older_name_of_libtpus_variable_is_replaced_where_it_is_set():
    lease = a_task_lease(vendor="google", kind="tpu")
    assert lease_environment(lease, {"TPU_VISIBLE_DEVICES": "0,1"})["TPU_VISIBLE_DEVICES"] == "2,5"
    assert lease_environment(a_task_lease(), {"TPU_VISIBLE_DEVICES": "0,1"})["TPU_VISIBLE_DEVICES"] == ""


def test_existing_options_of_the_allocator_are_kept():
    environment = lease_environment(a_task_lease(share=0.5), {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True,per_process_memory_fraction:0.5"


def test_bound_gives_the_lease_within_and_leaves_no_trace(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    before, affinity = dict(os.environ), os.sched_getaffinity(0)
    core = min(affinity)
    lease = a_task_lease(cores=(core,))
    with bound_to_lease(lease):
        assert current_lease() == lease
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
        assert os.sched_getaffinity(0) == {core}
    assert dict(os.environ) == before
    assert os.sched_getaffinity(0) == affinity


def test_bound_leaves_no_trace_of_a_task_that_raises():
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), bound_to_lease(a_task_lease()):
        _ = 1 / 0
    assert dict(os.environ) == before


def test_cores_that_the_host_does_not_give_us_do_not_break_the_task():
    affinity = os.sched_getaffinity(0)
    with bound_to_lease(a_task_lease(cores=(4095,))):
        assert os.sched_getaffinity(0) == affinity


def test_a_lease_that_cannot_be_read_is_a_clear_error(monkeypatch):
    monkeypatch.setenv(LEASE_VARIABLE, '{"id": 1}')
    with pytest.raises(NoLeaseError, match="only HeteroExecutor sets it"):
        current_lease()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "cuda:0"),
        ({"vendor": "amd"}, "cuda:0"),
        ({"vendor": "ascend", "kind": "npu"}, "npu:0"),
        ({"vendor": "google", "kind": "tpu"}, "xla:0"),
        ({"vendor": "intel", "kind": "cpu"}, "cpu"),
        ({"vendor": "intel", "kind": "gpu"}, "xpu:0"),
        ({"vendor": "intel", "kind": "fpga"}, "cpu"),
        ({"vendor": "habana", "kind": "hpu"}, "hpu:0"),
        ({"vendor": "xilinx", "kind": "fpga"}, "cpu"),
        ({"simulated": True}, "cpu"),
    ],
)
def test_torch_device_string_of_each_vendor(fields, expected):
    assert a_task_lease(**fields).torch_device == expected


def test_torch_device_follows_the_lease_and_works_without_one(monkeypatch):
    import torch

    monkeypatch.delenv(LEASE_VARIABLE, raising=False)
    assert torch_device().type in ("cpu", "cuda")
    with bound_to_lease(a_task_lease(simulated=True, share=0.5)):
        assert torch_device() == torch.device("cpu")


def test_each_process_of_torchrun_has_a_device_of_its_own(monkeypatch):
    import torch

    monkeypatch.setenv("LOCAL_RANK", "1")
    with bound_to_lease(a_task_lease()):
        assert torch_device() == torch.device("cuda:1")
    with bound_to_lease(a_task_lease(simulated=True)):
        assert torch_device() == torch.device("cpu")


def test_a_share_is_called_cooperative_and_a_simulated_device_simulated():
    text = str(a_task_lease(share=0.5, simulated=True, ids=("GPU-a",), indexes=(0,)))
    assert text == "0.5 of a (cooperative) nvidia/a100-sxm4-40gb (simulated) on host-a: GPU-a"


def test_a_pod_needs_no_binding_since_it_sees_only_its_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-given")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    lease = a_task_lease(ids=("nvidia.com/gpu/1",), indexes=(1,), cores=(0,), is_slot=True)
    with bound_to_lease(lease):
        assert (os.environ["CUDA_VISIBLE_DEVICES"], os.sched_getaffinity(0)) == ("GPU-given", before)
        assert current_lease() == lease
        assert os.environ["OMP_NUM_THREADS"] == "1"
