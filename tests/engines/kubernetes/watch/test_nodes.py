from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kubernetes import client

from hetero_airflow.engines.kubernetes.options import ClusterOptions
from hetero_airflow.engines.kubernetes.pods.pod_parts import pod_parts
from hetero_airflow.engines.kubernetes.watch.node_usage import pod_amounts
from hetero_airflow.engines.kubernetes.watch.nodes import worker_of
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.device import Device
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import MAX_DEVICES, WorkerState

GFD = {
    "kubernetes.io/hostname": "gpu-1",
    "kubernetes.io/arch": "amd64",
    "feature.node.kubernetes.io/cpu-model.vendor_id": "AMD",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.driver-version.minor": "54",
    "nvidia.com/cuda.driver-version.revision": "15",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "4",
}


def read(body, model):
    """As the client reads an answer of the API server."""
    api = client.ApiClient()
    return api._ApiClient__deserialize(body, model)


def a_node(allocatable=None, labels=None, capacity=None, ready="True", spec=None, conditions=()):
    amounts = {"cpu": "63500m", "memory": "527952Mi", "pods": "110", **(allocatable or {})}
    body = {
        "metadata": {"name": "gpu-1", "labels": labels if labels is not None else GFD},
        "spec": spec or {},
        "status": {
            "allocatable": amounts,
            "capacity": {**amounts, **(capacity or {})},
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletReady"}, *conditions],
        },
    }
    return read(body, "V1Node")


def accelerators(worker):
    return [device for device in worker.devices if device.kind != "cpu"]


def test_a_node_becomes_a_worker_with_its_devices():
    worker = worker_of(a_node({"nvidia.com/gpu": "2"}), site="eu")
    assert (worker.id, worker.host, worker.engine, worker.state) == (
        "eu/gpu-1",
        "gpu-1",
        "kubernetes",
        WorkerState.ONLINE,
    )
    assert worker.labels == GFD | {"hetero/site": "eu"}
    assert worker.runtime == {"cuda": "12.4"}
    assert worker.problems == ()
    assert worker.cpu == Device(
        id="cpu",
        vendor="amd",
        kind="cpu",
        model="amd64",
        index=0,
        memory_bytes=527952 * 2**20,
        cores=tuple(range(63)),
        capability="x86-64",
    )
    assert accelerators(worker) == [
        Device(
            id=f"nvidia.com/gpu/{index}",
            vendor="nvidia",
            kind="gpu",
            model="a100-sxm4-80gb",
            index=index,
            memory_bytes=80 * 2**30,
            driver="550.54.15",
        )
        for index in range(2)
    ]


def test_the_sites_own_label_counts_first():
    assert worker_of(a_node(labels={"hetero/site": "own"}), site="eu").labels == {"hetero/site": "own"}
    assert worker_of(a_node(labels={})).labels == {}


@pytest.mark.parametrize(
    ("resource", "labels", "expected"),
    [
        (
            "nvidia.com/mig-1g.10gb",
            {"nvidia.com/mig-1g.10gb.memory": "9728"},
            ("nvidia", "gpu", "1g.10gb", 9728 * 2**20),
        ),
        (
            "amd.com/gpu",
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
            ("amd", "gpu", None, 192 * 2**30),
        ),
        ("huawei.com/Ascend910", {"node.kubernetes.io/npu.chip.name": "910B3"}, ("ascend", "npu", None, None)),
        ("huawei.com/Ascend310P", {}, ("ascend", "npu", None, None)),
        ("google.com/tpu", {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}, ("google", "tpu", None, None)),
        ("gpu.intel.com/i915", {}, ("intel", "gpu", None, None)),
    ],
)
def test_each_vendors_devices_are_known(resource, labels, expected):
    (device,) = accelerators(worker_of(a_node({resource: "1"}, labels)))
    assert (device.vendor, device.kind, device.partition, device.memory_bytes) == expected


@pytest.mark.parametrize("label", [{}, {"nvidia.com/gpu.memory": "0"}, {"nvidia.com/gpu.memory": "many"}])
@pytest.mark.parametrize("memory", ["40GiB", "..128GiB", "1MiB..1TiB"])
def test_memory_without_a_label_is_unknown_and_suits_no_bound(label, memory):
    made = worker_of(a_node({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu.product": "NVIDIA-GB10"} | label))
    reason = check_worker(DeviceRequest.parse("gpu", quota={"memory": memory}).alternatives[0], made)[1]
    assert (reason.code, reason.found) == (ReasonCode.MEMORY, "unknown")
    assert check_worker(DeviceRequest.parse("nvidia/gb10").alternatives[0], made) == (True, None)


def test_models_are_called_as_requests_call_them():
    labels = [
        ("amd.com/gpu", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}),
        ("huawei.com/Ascend910", {"node.kubernetes.io/npu.chip.name": "910B3"}),
        ("huawei.com/Ascend310P", {}),
        ("google.com/tpu", {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "Tesla-T4"}),
    ]
    models = [accelerators(worker_of(a_node({name: "1"}, known)))[0].model for name, known in labels]
    assert models == ["instinct-mi300x-oam", "910b3", "310p", "v5e", "tesla-t4"]


def test_a_resource_that_the_owner_named_is_known_too():
    rows = {"xilinx/u250": "xilinx.com/fpga-u250", "fpga": "acme.com/fpga"}
    made = worker_of(a_node({"xilinx.com/fpga-u250": "1", "acme.com/fpga": "1", "acme.com/other": "9"}), resources=rows)
    assert [(accelerator.vendor, accelerator.kind, accelerator.model) for accelerator in accelerators(made)] == [
        ("generic", "fpga", "generic"),
        ("xilinx", "fpga", "u250"),
    ]


def test_a_row_without_a_vendor_has_that_of_the_resources_domain():
    (device,) = accelerators(worker_of(a_node({"amd.com/gpu": "1"}), resources={"gpu": "amd.com/gpu"}))
    assert (device.vendor, device.kind) == ("amd", "gpu")


def test_a_device_that_its_plugin_calls_unhealthy_is_not_leased():
    made = accelerators(worker_of(a_node({"nvidia.com/gpu": "1"}, capacity={"nvidia.com/gpu": "2"})))
    assert [device.leasable for device in made] == [True, False]
    assert "unhealthy" in made[1].problem


def test_replicas_and_instances_are_not_offered_as_whole_gpus():
    shared = GFD | {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}
    made = accelerators(worker_of(a_node({"nvidia.com/gpu": "8"}, shared)))
    assert [device.leasable for device in made] == [False, False]
    sliced = GFD | {"nvidia.com/gpu.slices.gi": "1", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    (instance,) = accelerators(worker_of(a_node({"nvidia.com/gpu": "1"}, sliced)))
    assert (instance.leasable, instance.model) == (False, "a100-sxm4-80gb")


@pytest.mark.parametrize(
    ("arguments", "state", "phrase"),
    [
        ({"ready": "False"}, WorkerState.LOST, "not ready"),
        ({"ready": "Unknown"}, WorkerState.LOST, "not ready"),
        ({"spec": {"unschedulable": True}}, WorkerState.ONLINE, "cordoned"),
        ({"conditions": [{"type": "DiskPressure", "status": "True"}]}, WorkerState.ONLINE, "DiskPressure"),
        ({"spec": {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}}, WorkerState.ONLINE, "team=b"),
        ({"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoExecute"}]}}, WorkerState.ONLINE, "NoExecute"),
    ],
)
def test_a_node_that_takes_no_pods_offers_nothing_and_says_why(arguments, state, phrase):
    worker = worker_of(a_node({"nvidia.com/gpu": "1"}, **arguments))
    assert worker.state is state
    assert all(not device.leasable and phrase in device.problem for device in worker.devices)
    assert phrase in worker.problems[0]


@pytest.mark.parametrize("effect", ["NoSchedule", "PreferNoSchedule"])
def test_taints_that_our_pods_stand_keep_nothing_off(effect):
    spec = {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": effect}]}
    assert worker_of(a_node({"nvidia.com/gpu": "1"}, spec=spec)).problems == ()


def test_a_node_without_a_status_is_a_lost_worker_without_devices():
    worker = worker_of(read({"metadata": {"name": "n"}, "spec": {}, "status": {}}, "V1Node"))
    assert (worker.state, worker.devices) == (WorkerState.LOST, ())


def test_a_node_that_claims_a_million_devices_is_cut_short():
    worker = worker_of(a_node({"nvidia.com/gpu": "1000000", "amd.com/gpu": "1000000"}))
    assert len(worker.devices) == MAX_DEVICES


@given(
    st.dictionaries(st.sampled_from([*GFD, "amd.com/gpu.vram", "nvidia.com/gpu.replicas"]), st.text(max_size=63)),
    st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb", "google.com/tpu"]),
)
@example(
    dict.fromkeys(["nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver-version.minor"], "0" * 32),
    "nvidia.com/gpu",
)
def test_labels_with_nonsense_make_a_worker_all_the_same(labels, resource):
    assert worker_of(a_node({resource: "1"}, labels)).host == "gpu-1"


def a_pod(node="gpu-1", phase="Running", **spec):
    containers = [{"name": "base", "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}}}]
    spec = {"nodeName": node, "containers": containers, **spec}
    return read({"metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase}}, "V1Pod")


def test_a_pod_takes_what_the_scheduler_counts():
    """Sidecars stay; what prepares the pod runs one by one beside the sidecars started before it."""
    pod = a_pod(
        initContainers=[
            {"name": "a", "resources": {"requests": {"cpu": "3"}}},
            {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
            {"name": "b", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "1"}}},
        ],
        overhead={"cpu": "100m"},
        containers=[{"name": "base", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}, {"name": "none"}],
    )
    assert pod_amounts(pod) == {"cpu": Decimal("4.6"), "nvidia.com/gpu": 2}


def test_a_pod_takes_what_its_request_asks_for():
    parts = pod_parts(DeviceRequest.parse("nvidia:2", quota={"cpus": 4, "host_memory": "64GiB"}), ClusterOptions())
    resources = {"limits": dict(parts.amounts), "requests": dict(parts.amounts)}
    made = a_pod(containers=[{"name": "base", "resources": resources}])
    assert pod_amounts(made) == {"nvidia.com/gpu": 2, "cpu": 4, "memory": 64 * 2**30}
