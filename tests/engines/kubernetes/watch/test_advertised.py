"""What device plugins advertise on a node, read from composed nodes in tests/fixtures/kubernetes."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.pods.pod_override import resource_of_slot
from hetero_airflow.engines.kubernetes.resources import resource_of
from hetero_airflow.engines.kubernetes.watch.cluster_view import _read_node
from hetero_airflow.engines.kubernetes.watch.informer import model_of
from hetero_airflow.engines.kubernetes.watch.node_usage import NodeUsage, without_usage
from hetero_airflow.engines.kubernetes.watch.nodes import with_slice_devices, worker_of
from hetero_airflow.errors import RequestError
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.testing import a_device

GKE = "cloud.google.com/gke-"
MODES = ["amd.com/gpu.compute-memory-partition", "amd.com/compute-memory-partition"]
NODES = json.loads((Path(__file__).parents[3] / "fixtures" / "kubernetes" / "nodes.json").read_text())
GIB = 2**30


def read(node, configured=None, **spec):
    capacity = {"cpu": "32", "memory": "128Gi", **node["capacity"]}
    body = {
        "metadata": {"name": "n1", "labels": node["labels"], "annotations": node.get("annotations")},
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return worker_of(model_of(_read_node(body, None), "V1Node"), resources=configured)


def accelerators(worker):
    return [device for device in worker.devices if device.kind != "cpu"]


def leasable(worker):
    return {device.id for device in accelerators(worker) if device.leasable}


def fits(worker, device):
    return check_worker(DeviceRequest.parse(device).alternatives[0], worker)[0]


def changed(name, labels=(), capacity=(), without=()):
    node = NODES[name]
    kept = {key: value for key, value in node["labels"].items() if key not in without}
    return {"labels": kept | dict(labels), "capacity": node["capacity"] | dict(capacity)}


@pytest.mark.parametrize(
    ("node", "number", "words"),
    [
        (NODES["gke-time-sharing"], 1, "shared by time-sharing"),
        (changed("gke-time-sharing", without=[f"{GKE}gpu-sharing-strategy"]), 1, "several pods share it"),
        (NODES["hami-split"], 1, "offers 10 of nvidia.com/gpu, its labels count 1: several pods share one"),
        (NODES["time-slicing-unknown-to-gfd"], 1, "several pods share one"),
        (NODES["gfd-time-slicing"], 2, "shared by time-slicing"),
        (NODES["gfd-renamed"], 2, "shared by time-slicing"),
        (NODES["mig-mixed-shared"], 7, "shared by time-slicing"),
        (NODES["mig-single"], 7, 'set its MIG strategy to "mixed"'),
        (NODES["intel-shared"], 1, "several pods share one"),
        (NODES["hami-ascend"], 8, "HAMi's plugin counts shares"),
        (changed("old-gfd", {"nvidia.com/gpu.count": "x"}), 8, "label nvidia.com/gpu.count is no count"),
        (changed("old-gfd", {"nvidia.com/gpu.count": "0"}), 8, "label nvidia.com/gpu.count is no count"),
        (changed("hami-split", without=["nvidia.com/gpu.count"]), 10, "nvidia.com/gpu.count is no count of devices or"),
        (changed("no-labels", {"gpu": "on"}, {"nvidia.com/gpu": "10"}), 10, "nvidia.com/gpu.count is no count"),
        (changed("no-labels", capacity={"nvidia.com/gpu": "2", "nvidia.com/gpumem": "81920"}), 2, "nvidia.com/gpumem"),
        (changed("no-labels", capacity={"nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "4"}), 6, "whole"),
        (changed("old-gfd") | {"annotations": {"hami.io/node-nvidia-register": "GPU-1,10,…"}}, 8, "HAMi or Volcano"),
        (changed("gke-mig", {f"{GKE}max-shared-clients-per-gpu": "3"}), 7, "several pods share it"),
        (changed("gke-mig", capacity={"nvidia.com/gpu": "14"}), 7, "nvidia.com/gpu, its labels count 7"),
        (changed("gke-mig", {f"{GKE}gpu-partition-size": "small"}), 7, "whose size GKE's label"),
        (changed("no-labels", {"karpenter.k8s.aws/instance-gpu-count": "1"}), 1, "several pods share one"),
        (changed("amd-single-cpx", {MODES[0]: "xyz"}), 64, "mode is not understood"),
        (changed("amd-single-cpx", without=MODES), 64, "may be partitions"),
        (changed("amd-single-cpx", dict.fromkeys(MODES, "spx_nps1")), 64, "may be partitions"),
        (changed("amd-single-cpx", capacity={"amd.com/gpu": "65"}), 65, "may be partitions"),
        ({"labels": {}, "capacity": {"amd.com/gpu": "64"}}, 64, "may be partitions"),
        (changed("mig-single", capacity={"nvidia.com/gpu": "28"}), 7, 'set its MIG strategy to "mixed"'),
    ],
)  # fmt: skip
def test_what_is_shared_or_can_not_be_counted_is_shown_once_and_not_leased(node, number, words):
    devices = accelerators(read(node))
    assert (len(devices), leasable(read(node))) == (number, set())
    assert all(words in device.problem for device in devices)


@pytest.mark.parametrize(
    ("name", "request_text", "other"),
    [
        ("gke-mig", "mig-1g.5gb:7", "a100-40gb"),
        ("amd-single-cpx", {"vendor": "amd", "kind": "gpu", "partition": "cpx-nps4", "count": 64}, "mi300x"),
        ("amd-single-cpx", "amd/cpx-nps4:64", "amd"),
        ("amd-mixed", "amd/cpx-nps1:24", "mi300x:6"),
        ("amd-mixed", "mi300x:5", "amd/cpx-nps4"),
        ("intel-xe", "intel/arc-b580:2", "intel/max-1550"),
        ("intel-xe", "intel:2", "intel/fpga"),
        ("gaudi", "habana/gaudi2:8", "habana/gaudi3"),
        ("gaudi", "hpu:8", "npu"),
        ("gke-tpu7x", "google/v7x:4", "v6e"),
        ("volcano-vnpu", {"vendor": "ascend", "kind": "npu", "partition": "2c", "count": 4}, "npu"),
        ("neuron", "aws/trn1:16", "neuron:17"),
        ("furiosa", "furiosa/rngd:2", "gpu"),
        ("old-gfd", "a100-40gb:8", "a100:9"),
        ("no-labels", "gpu:1000", "a100"),
    ],
)
def test_what_is_whole_or_a_partition_is_found_by_its_name_and_by_no_other(name, request_text, other):
    worker = read(NODES[name])
    assert (fits(worker, request_text), fits(worker, other)) == (True, False)
    assert {resource_of_slot(id_) for id_ in leasable(worker)} <= NODES[name]["capacity"].keys()


@pytest.mark.parametrize(
    ("product", "mode", "gib"),
    [
        ("AMD_Instinct_MI300X_OAM", "cpx_nps4", 24), ("AMD_Instinct_MI300A", "tpx_nps1", 128 / 3),
        ("AMD_Instinct_MI300A", "cpx_nps1", 128 / 6), ("AMD_Instinct_MI308X_OAM", "cpx_nps1", 48),
        ("AMD_Instinct_MI325X", "dpx_nps2", 128), ("AMD_Instinct_MI400X", "cpx_nps1", None),
    ],
)  # fmt: skip
def test_a_partition_has_its_part_of_the_chips_memory(product, mode, gib):
    node = {"labels": {"amd.com/gpu.product-name": product}, "capacity": {f"amd.com/{mode}": "2"}}
    assert {device.memory_bytes for device in accelerators(read(node))} == {gib and int(gib * GIB)}


def test_whole_amd_gpus_have_the_size_of_their_label_and_spx_is_whole():
    sizes = {device.partition: device.memory_bytes // GIB for device in accelerators(read(NODES["amd-mixed"]))}
    assert sizes == {None: 192, "cpx-nps1": 24}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("hygon", ["hygon: the node offers 65536 of hygon.com/dcumem", "hygon: the node offers 4 of hygon.com/dcunum"]),
        ("unknown", ["acme: the node offers 1 of acme.io/npu", "nvidia: the node offers 4 of nvidia.com/GRID_A40-8Q"]),
        ("volcano-vgpu", ["nvidia: the node offers 24576 of volcano.sh/vgpu-memory", "nvidia: the node offers 10"]),
        ("furiosa", []),
        ("neuron", []),
        ("no-accelerators", []),
        ("intel-shared", []),
        ("hami-ascend", []),
        ("no-labels", ["nvidia: the node has no label that names the model of its 1000 of nvidia.com/gpu"]),
    ],
)
def test_a_resource_that_is_not_understood_is_a_problem_line_and_another_is_none(name, lines):
    problems = read(NODES[name]).problems
    assert len(problems) == len(lines)
    assert all(problem.startswith(line) for problem, line in zip(problems, lines, strict=True))


def test_devices_that_a_node_offers_under_two_names_are_leased_under_the_more_exact_one():
    capacity = {"amd.com/gpu": "8", "amd.com/spx_nps1": "8", "huawei.com/Ascend910": "8", "huawei.com/Ascend910B4": "8"}
    assert leasable(read({"labels": {}, "capacity": capacity})) == {f"amd.com/spx_nps1/{n}" for n in range(8)}


def test_cores_of_neuron_chips_alone_are_a_problem_line_and_used_ones_take_their_chips():
    (line,) = read({"labels": {}, "capacity": {"aws.amazon.com/neuroncore": "2"}}).problems
    assert line.startswith("aws: the node offers 2 of aws.amazon.com/neuroncore, which may count parts of devices")
    usage = NodeUsage(amounts={"aws.amazon.com/neuroncore": Decimal(2), "aws.amazon.com/neuron": Decimal(1)})
    assert len(leasable(without_usage(read(NODES["neuron"]), usage))) == 13


def test_a_resource_that_the_owner_names_is_offered_even_where_its_name_is_one_for_shares():
    worker = read(changed("hami-ascend") | {"capacity": {"huawei.com/Ascend910B4": "8"}},
                  {"ascend/910b4": "huawei.com/Ascend910B4"})  # fmt: skip
    assert (fits(worker, "ascend/910b4:8"), worker.problems) == (True, ())
    with_memory = read(NODES["hami-ascend"], {"ascend/910b4": "huawei.com/Ascend910B4"})
    assert leasable(with_memory) == set()
    renamed = {"labels": {"nvidia.com/gpu.count": "8"}, "capacity": {"nvidia.com/a100": "8"}}
    assert len(leasable(read(renamed, {"nvidia/a100": "nvidia.com/a100"}))) == 8
    renamed["capacity"]["nvidia.com/gpu"] = "8"
    assert leasable(read(renamed, {"nvidia/a100": "nvidia.com/a100"})) == set()
    bare = read(NODES["gaudi-bare"], {"habana/gaudi2": "habana.ai/gaudi"})
    assert fits(bare, "habana/gaudi2:8")


def test_only_what_keeps_pods_off_the_node_or_may_be_the_same_device_keeps_the_devices_of_slices_off():
    slices = [a_device("gpu.intel.com/p/g0", vendor="intel", model="max-1550")]
    assert with_slice_devices(read(NODES["hygon"]), slices).devices[-1].leasable
    same = with_slice_devices(read(NODES["unknown"]), [a_device("gpu.nvidia.com/p/g0", vendor="nvidia")])
    assert "may be the same device" in same.devices[-1].problem
    two = [a_device(f"{driver}/p/g0", vendor="nvidia") for driver in ("gpu.nvidia.com", "vgpu.nvidia.com")]
    assert leasable(with_slice_devices(read(NODES["hygon"]), two)) == {"gpu.nvidia.com/p/g0"}
    cordoned = with_slice_devices(read(NODES["hygon"], unschedulable=True), slices)
    assert cordoned.devices[-1].problem == cordoned.problems[0] == "the node is cordoned"


@pytest.mark.parametrize(
    ("partition", "vendor", "resource"),
    [("1g.10gb", "nvidia", "nvidia.com/mig-1g.10gb"), ("cpx-nps4", "amd", "amd.com/cpx_nps4"), ("2c", "ascend", None)],
)
def test_a_partition_is_asked_for_by_its_vendors_resource(partition, vendor, resource):
    alternative = Alternative(vendor=vendor, kind="gpu", partition=partition)
    if resource is None:
        with pytest.raises(RequestError, match="no known Kubernetes resource"):
            resource_of(alternative, {})
    else:
        assert resource_of(alternative, {}).name == resource


@settings(max_examples=300)
@given(st.data())
def test_no_changed_label_or_resource_makes_a_device_leasable(data):
    """A name is renamed, dropped or doubled, or two values change places; the rest of the node still tells enough."""
    name = data.draw(st.sampled_from(sorted(NODES)))
    node = {part: dict(NODES[name][part]) for part in ("labels", "capacity")}
    part = data.draw(st.sampled_from([part for part in node if node[part]]))
    key = data.draw(st.sampled_from(sorted(node[part])))
    change = data.draw(st.sampled_from(["rename", "drop", "double", "move"]))
    value = node[part].pop(key)
    if change == "move":
        other = data.draw(st.sampled_from(sorted(node[part]) or [key]))
        node[part] |= {key: node[part].get(other, value), other: value} if part == "labels" else {key: value}
    elif change != "drop":
        node[part] |= {f"{key}x": value} | ({key: value} if change == "double" else {})
    assert leasable(read(node)) <= leasable(read(NODES[name]))
