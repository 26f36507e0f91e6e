"""Nodes of a real control plane as workers, by list and watch, as the service account of docs/kubernetes/.

The kubelet is simulated: the tests register nodes and send their reports. The control plane itself sets taints, and
the readiness of a node that sends no report.
"""

import logging

import pytest
from kubernetes import client

from hetero_airflow.engines.kubernetes.pods.pod_override import DEVICES_ANNOTATION
from hetero_airflow.engines.kubernetes.watch import informer
from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from hetero_airflow.engines.kubernetes.watch.informer import Informer
from hetero_airflow.model.worker import WorkerState
from tests.engines.kubernetes.fake_api import SIGNER, a_pod
from tests.system.kubernetes.leasing import ACCOUNT
from tests.waiting import eventually

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/cuda.driver-version.revision": "15",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.driver-version.minor": "54",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "4",
    "nvidia.com/mig-1g.10gb.memory": "9728",
    "feature.node.kubernetes.io/cpu-model.vendor_id": "Intel",
    "topology.kubernetes.io/zone": "eu-1a",
}


class WatchedCluster:
    """A view of a cluster, and a store that records what the view reports."""

    def __init__(self, plane):
        self.view = ClusterView(
            None, lambda: client.CoreV1Api(plane.connect(plane.token(ACCOUNT))), "airflow", {}, SIGNER
        )
        self.workers, self.now = {}, 1000.0

    def worker(self, node="gpu-1"):
        self.now += 2
        changes = self.view.poll(self.workers, self.now)
        self.workers |= {worker.id: worker for worker in changes.seen}
        for id_ in changes.lost:
            self.workers[id_] = self.workers[id_].model_copy(update={"state": WorkerState.LOST})
        return self.workers.get(node)

    def until(self, holds, node="gpu-1", timeout_s=20):
        def held():
            worker = self.worker(node)
            return worker if worker is not None and holds(worker) else None

        return eventually(held, timeout_s)


@pytest.fixture
def watched(plane):
    cluster = WatchedCluster(plane)
    cluster.view.start()
    assert cluster.view.wait(600)
    yield cluster
    cluster.view.stop()


def leasable(worker):
    return [device.id for device in worker.devices if device.kind != "cpu" and device.leasable]


def test_a_node_is_read_with_its_devices_labels_and_versions(watched, nodes):
    nodes.add("gpu-1", 2, amounts={"nvidia.com/mig-1g.10gb": "1"}, labels=A100)
    worker = watched.until(leasable)
    assert leasable(worker) == ["nvidia.com/gpu/0", "nvidia.com/gpu/1", "nvidia.com/mig-1g.10gb/0"]
    gpu, mig = worker.devices[1], worker.devices[-1]
    assert (gpu.model, gpu.memory_bytes, gpu.driver) == ("a100-sxm4-80gb", 80 * 2**30, "550.54.15")
    assert (mig.partition, mig.memory_bytes) == ("1g.10gb", 9728 * 2**20)
    assert (worker.cpu.vendor, len(worker.cpu.cores), worker.cpu.memory_bytes) == ("intel", 8, 64 * 2**30)
    assert (worker.runtime, worker.labels["topology.kubernetes.io/zone"]) == ({"cuda": "12.4"}, "eu-1a")


@pytest.mark.parametrize(
    ("resource", "vendor", "kind"),
    [
        ("amd.com/gpu", "amd", "gpu"),
        ("gpu.intel.com/i915", "intel", "gpu"),
        ("huawei.com/Ascend910", "ascend", "npu"),
        ("google.com/tpu", "google", "tpu"),
    ],
)
def test_devices_of_each_vendor_are_read(watched, nodes, resource, vendor, kind):
    nodes.add("gpu-1", 0, amounts={resource: "2"})
    worker = watched.until(leasable)
    assert leasable(worker) == [f"{resource}/0", f"{resource}/1"]
    assert {(device.vendor, device.kind) for device in worker.devices[1:]} == {(vendor, kind)}


def test_a_device_that_fails_is_told_and_comes_back(watched, nodes):
    nodes.add("gpu-1", 2)
    watched.until(lambda worker: len(leasable(worker)) == 2)
    nodes.patch_status("gpu-1", allocatable={"nvidia.com/gpu": "1"})
    worker = watched.until(lambda worker: leasable(worker) == ["nvidia.com/gpu/0"])
    assert worker.devices[-1].problem == "the device plugin reports it as unhealthy"
    nodes.patch_status("gpu-1", allocatable={"nvidia.com/gpu": "2"})
    watched.until(lambda worker: len(leasable(worker)) == 2)


def test_cordons_taints_and_pressure_keep_devices_back(watched, nodes):
    nodes.add("gpu-1", 2)
    watched.until(leasable)
    nodes.api.patch_node("gpu-1", {"spec": {"unschedulable": True}})
    watched.until(lambda worker: worker.problems == ("the node is cordoned",))
    eventually(lambda: nodes.api.read_node("gpu-1").spec.taints)  # the controllers report it too
    nodes.api.patch_node("gpu-1", {"spec": {"unschedulable": None}})
    watched.until(leasable)
    nodes.api.patch_node("gpu-1", {"spec": {"taints": [{"key": "dedicated", "value": "a", "effect": "NoExecute"}]}})
    watched.until(lambda worker: worker.problems == ("taints keep pods off the node: dedicated=a:NoExecute",))
    nodes.api.patch_node("gpu-1", {"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}})
    watched.until(leasable)
    full = {"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure", "message": "no space"}
    nodes.patch_status("gpu-1", conditions=[full])
    watched.until(lambda worker: worker.problems == ("DiskPressure: no space",))


def test_a_node_that_registers_offers_nothing_until_the_controllers_let_pods_there(watched, nodes):
    nodes.add("gpu-1", 2)
    watched.until(leasable)
    nodes.stop_reports("gpu-1")
    worker = watched.until(lambda worker: worker.state is WorkerState.LOST, timeout_s=40)
    assert worker.problems[0].startswith("the node is not ready: ")
    nodes.resume_reports("gpu-1")
    watched.until(leasable, timeout_s=40)


def test_a_node_that_is_deleted_is_lost(watched, nodes):
    nodes.add("gpu-1", 2)
    watched.until(leasable)
    nodes.stop_reports("gpu-1")
    nodes.api.delete_node("gpu-1")
    watched.until(lambda worker: worker.state is WorkerState.LOST)
    assert watched.view.is_lost("gpu-1")


def test_what_pods_have_is_read_from_the_pods(watched, nodes):
    nodes.add("gpu-1", 4)
    watched.until(lambda worker: len(leasable(worker)) == 4)
    nodes.api.create_namespaced_pod("default", a_pod("other", "gpu-1", 2))
    annotations = {DEVICES_ANNOTATION: "nvidia.com/gpu/3"}
    ours = a_pod("ours", "gpu-1", 1, namespace="airflow", annotations=annotations, lease="l1")
    nodes.api.create_namespaced_pod("airflow", ours)
    watched.until(lambda worker: leasable(worker) == ["nvidia.com/gpu/0", "nvidia.com/gpu/3"])
    assert eventually(lambda: watched.view.pods().get("l1")).node == "gpu-1"
    nodes.api.delete_namespaced_pod("ours", "airflow")
    watched.until(lambda worker: leasable(worker) == ["nvidia.com/gpu/0"])
    nodes.drop("ours", "airflow")
    nodes.put("other", "default", "Succeeded")
    watched.until(lambda worker: len(leasable(worker)) == 4)


def test_a_long_list_is_read_in_pages(watched, nodes, plane, monkeypatch):
    monkeypatch.setattr(informer, "PAGE_SIZE", 2)
    for number in range(5):
        nodes.api.create_namespaced_pod("airflow", a_pod(f"p{number}", "gpu-1", namespace="airflow"))
    account = client.CoreV1Api(plane.connect(plane.token(ACCOUNT)))
    pods = Informer("pods", lambda: account, lambda api: api.list_namespaced_pod, _name, query={"namespace": "airflow"})
    pods.start()
    try:
        assert pods.wait(600)
        assert sorted(pods.values()) == [f"p{number}" for number in range(5)]
    finally:
        pods.stop()


def test_a_watch_that_is_too_old_is_begun_anew(watched, nodes, plane, caplog):
    """A restarted server has forgotten older events. Compaction by etcd has the same effect."""
    caplog.set_level(logging.INFO, informer.__name__)
    nodes.add("gpu-1", 2)
    watched.until(leasable)
    nodes.api.create_namespaced_config_map("default", {"metadata": {"generateName": "later-"}})
    plane.kill_api_server()
    eventually(lambda: watched.view.problem)
    assert leasable(watched.worker()), "a cluster that does not answer keeps its nodes"
    plane.start_api_server()
    nodes.patch_status("gpu-1", allocatable={"nvidia.com/gpu": "1"})
    watched.until(lambda worker: leasable(worker) == ["nvidia.com/gpu/0"], timeout_s=40)
    assert watched.view.problem is None
    eventually(lambda: "The cluster answers again" in caplog.text)
    assert caplog.text.count("The cluster does not answer") == 1


def _name(item, before):
    return item["metadata"]["name"]
