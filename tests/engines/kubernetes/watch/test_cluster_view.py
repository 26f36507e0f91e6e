import pytest

from hetero_airflow.engines.kubernetes.pods.pod_override import DEVICES_ANNOTATION, LEASE_LABEL, SEAL_ANNOTATION
from hetero_airflow.engines.kubernetes.watch.cluster_view import HEARTBEAT_INTERVAL_S, NODE_GRACE_S, ClusterView
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.testing import a_signer
from tests.engines.kubernetes.fake_api import SIGNER, a_node, a_pod, connect
from tests.engines.kubernetes.slices.played_slices import a_claim, a_gpu, a_slice
from tests.waiting import eventually

GONE = {"phase": "Succeeded"}


class WatchedCluster:
    """A view of a cluster, and a store that records what the view reports."""

    def __init__(self, api, site=None, namespace="default", timeout_s=5):
        self.view = ClusterView(site, lambda: connect(api), namespace, {}, SIGNER)
        self.view.start()
        assert self.view.wait(timeout_s) == ("/api/v1/pods" not in api.forbidden)
        self.workers, self.now, self.changes, self.until_s = {}, 1000.0, [], 2.0

    def poll(self, after_s=2.0, problem=None):
        self.now += after_s
        changes = self.view.poll(self.workers, self.now, problem)
        for worker in changes.seen:
            self.workers[worker.id] = worker.model_copy(update={"state": WorkerState.ONLINE})
        for id_ in changes.lost:
            self.workers[id_] = self.workers[id_].model_copy(update={"state": WorkerState.LOST})
        self.changes.append(changes)
        return changes

    def until(self, holds):
        return eventually(lambda: self.poll(self.until_s) and holds())

    def leasable(self, node="gpu-1"):
        return [device.id[-1] for device in self.workers[node].devices if device.kind != "cpu" and device.leasable]


@pytest.fixture
def watched(api):
    """Views that are stopped afterwards."""
    made = []

    def make(**arguments):
        made.append(WatchedCluster(api, **arguments))
        return made[-1]

    yield make
    for cluster in made:
        cluster.view.stop()


@pytest.fixture
def cluster(api, watched):
    """A view that has reported the node gpu-1."""
    api.put("nodes", a_node("gpu-1"))
    cluster = watched()
    cluster.poll()
    return cluster


def ours(name, lease, slots, node="gpu-1", **arguments):
    return a_pod(
        name, node, len(slots), lease=lease,
        annotations={DEVICES_ANNOTATION: ",".join(f"nvidia.com/gpu/{slot}" for slot in slots)}, **arguments,
    )  # fmt: skip


FORGED = {
    "only the label": {"labels": {LEASE_LABEL: "l1"}},
    "a seal that was copied from the pod of the lease": {"copied": True},
    "the seal of another Airflow": {"seal": a_signer().seal("pod/1", "l1", "default", "forged")},
    "the seal of another lease": {"seal": SIGNER.seal("pod/1", "l2", "default", "forged")},
    "the seal of another namespace": {"seal": SIGNER.seal("pod/1", "l1", "other", "forged")},
    "the signature of a grant": {"seal": SIGNER.sign(lease="l1", token=1, task="t", start_by=0).signature},
    "no text": {"seal": "\N{SNOWMAN}"},
}


@pytest.mark.parametrize("how", FORGED)
def test_a_pod_that_somebody_else_labels_with_a_lease_is_a_foreign_one(api, cluster, how):
    ours_now = api.put("pods", ours("ours", "l1", (0,)))
    copied = ours_now["metadata"]["annotations"]
    annotations = copied if FORGED[how].get("copied") else {SEAL_ANNOTATION: FORGED[how].get("seal", "")}
    api.put("pods", a_pod("forged", "gpu-1", 1, {LEASE_LABEL: "l1"}, annotations=annotations))
    cluster.until(lambda: cluster.leasable() == ["0"] and "l1" in cluster.view.pods())  # the forged one takes GPU 1
    assert cluster.view.pods()["l1"].name == "ours"
    assert [pod.metadata.name for pod in cluster.view.find_pods(connect(api), "l1")] == ["ours"]
    api.drop("pods", "ours", "default")
    eventually(lambda: "l1" not in cluster.view.pods())
    assert cluster.view.find_pods(connect(api), "l1") == []


def test_nodes_are_workers_reported_once_and_then_as_alive(api, watched):
    api.put("nodes", a_node("gpu-1"))
    cluster = watched()
    changes = cluster.poll()
    assert [(worker.id, worker.engine, len(worker.devices)) for worker in changes.seen] == [("gpu-1", "kubernetes", 3)]
    assert cluster.poll() == type(changes)()
    assert cluster.poll(HEARTBEAT_INTERVAL_S) == type(changes)(alive=("gpu-1",))


def test_a_node_that_comes_goes_or_is_not_ready_is_reported(api, cluster):
    api.put("nodes", a_node("gpu-2"))
    cluster.until(lambda: "gpu-2" in cluster.workers)
    api.put("nodes", a_node("gpu-1", ready="Unknown"))
    cluster.until(lambda: cluster.workers["gpu-1"].state is WorkerState.LOST)
    assert (cluster.view.is_lost("gpu-1"), cluster.view.is_lost("gpu-2")) == (True, False)
    api.put("nodes", a_node("gpu-1"))
    cluster.until(lambda: cluster.workers["gpu-1"].state is WorkerState.ONLINE)
    api.drop("nodes", "gpu-2")
    cluster.until(lambda: cluster.workers["gpu-2"].state is WorkerState.LOST)
    assert cluster.workers["gpu-1"].state is WorkerState.ONLINE
    assert (cluster.view.is_lost("gpu-1"), cluster.view.is_lost("gpu-2")) == (False, True)


def test_a_node_that_the_store_lists_as_lost_is_reported_again(api, cluster):
    cluster.workers["gpu-1"] = cluster.workers["gpu-1"].model_copy(update={"state": WorkerState.LOST})
    assert [worker.id for worker in cluster.poll(HEARTBEAT_INTERVAL_S).seen] == ["gpu-1"]


def test_a_heartbeat_of_a_node_is_no_change(api, cluster):
    again = a_node("gpu-1")
    again["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-02T00:00:00Z"
    api.put("nodes", again)
    api.put("nodes", a_node("gpu-2"))
    cluster.until(lambda: "gpu-2" in cluster.workers)
    assert [worker.id for changes in cluster.changes for worker in changes.seen] == ["gpu-1", "gpu-2"]


def test_an_odd_node_is_left_out_and_hides_no_other(api, watched, caplog):
    odd = a_node("odd")
    odd["status"]["allocatable"]["cpu"] = "many"
    api.put("nodes", odd)
    api.put("nodes", a_node("gpu-1"))
    cluster = watched()
    assert [worker.id for worker in cluster.poll().seen] == ["gpu-1"]
    api.put("nodes", a_node("gpu-2"))
    cluster.until(lambda: "gpu-2" in cluster.workers)
    assert caplog.text.count("Node 'odd' can't be read") == 1


def test_an_integrated_gpu_has_the_memory_of_its_node(api, watched):
    spark = a_node("gpu-1", gpus=1)
    spark["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-GB10"}
    api.put("nodes", spark)
    (worker,) = watched().poll().seen
    assert [(device.model, device.memory_bytes) for device in worker.devices if device.kind == "gpu"] == [
        ("gb10", 64 << 30)
    ]


def test_each_cluster_is_a_site(api, watched):
    api.put("nodes", a_node("gpu-1"))
    cluster = watched(site="eu")
    (worker,) = cluster.poll().seen
    assert (worker.id, worker.host, worker.labels["hetero/site"]) == ("eu/gpu-1", "gpu-1", "eu")


def test_devices_of_other_pods_are_not_offered(api, watched):
    api.put("nodes", a_node("gpu-1", gpus=4))
    api.put("pods", ours("o", "l1", [3]))
    cluster = watched()
    cluster.poll()
    assert cluster.leasable() == list("0123")
    api.put("pods", a_pod("foreign", "gpu-1", 2, namespace="else"))
    cluster.until(lambda: cluster.leasable() == list("03"))  # slot 3 has a lease of ours, so that it is not the one
    assert "not placed here" in cluster.workers["gpu-1"].devices[2].problem
    api.set_status("foreign", GONE, "else")
    cluster.until(lambda: cluster.leasable() == list("0123"))


def test_a_pod_of_another_installation_is_a_foreign_pod(api, watched):
    api.put("nodes", a_node("gpu-1", gpus=2))
    api.put("pods", ours("theirs", "l9", [0], namespace="other-airflow"))
    cluster = watched()
    cluster.poll()
    assert cluster.leasable() == ["0"]
    assert cluster.view.pods() == {}


def test_the_slot_of_an_ending_pod_is_not_offered(api, watched):
    api.put("nodes", a_node("gpu-1", gpus=2))
    api.put("pods", ours("o", "l1", [0]))
    cluster = watched()
    cluster.poll()
    api.set_status("o", {"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.until(lambda: cluster.leasable() == ["1"])
    api.drop("pods", "o", "default")
    cluster.until(lambda: cluster.leasable() == ["0", "1"])


def test_cores_that_stay_taken_are_not_there_and_others_only_busy(api, watched):
    api.put("nodes", a_node("gpu-1"))
    api.put("pods", a_pod("agent", "gpu-1", cpu="1500m", owner="DaemonSet"))
    api.put("pods", a_pod("job", "gpu-1", cpu="4", owner="Job"))
    cluster = watched()
    cluster.poll()
    assert len(cluster.workers["gpu-1"].cpu.cores) == 6


def test_without_the_right_to_see_all_pods_all_else_works(api, watched, caplog):
    api.forbidden.add("/api/v1/pods")
    api.put("nodes", a_node("gpu-1"))
    cluster = watched(timeout_s=0.3)
    cluster.until(lambda: "gpu-1" in cluster.workers)
    assert cluster.view.problem is None
    eventually(lambda: "ClusterRole" in caplog.text)


def test_a_cluster_that_refuses_us_keeps_its_nodes(api, cluster):
    api.status = 401
    api.cut()
    eventually(lambda: cluster.view.problem)
    assert "credentials are refused" in cluster.view.problem
    eventually(lambda: not cluster.view.is_synced)
    assert cluster.poll(HEARTBEAT_INTERVAL_S).alive == ("gpu-1",)
    assert not cluster.view.is_lost("never-known"), "who does not answer says of no node that it is gone"
    api.status = None
    eventually(lambda: cluster.view.problem is None)


def test_a_node_that_is_not_ready_after_an_outage_gets_time_to_report(api, watched):
    for name in ("gpu-1", "gpu-2"):
        api.put("nodes", a_node(name))
    cluster = watched()
    cluster.poll()
    api.status = 503
    api.cut()
    cluster.until(lambda: cluster.view.problem)
    for name in ("gpu-1", "gpu-2"):
        api.put("nodes", a_node(name, ready="Unknown"))
    api.status, cluster.until_s = None, 0.02  # about as fast as the test itself
    cluster.until(lambda: cluster.view.problem is None)
    cluster.until(lambda: not any(cluster.leasable(name) for name in ("gpu-1", "gpu-2")))
    assert not cluster.view.is_lost("gpu-1")
    assert cluster.workers["gpu-1"].state is WorkerState.ONLINE
    api.put("nodes", a_node("gpu-1"))
    cluster.until(lambda: cluster.leasable("gpu-1") == ["0", "1"])
    cluster.poll(NODE_GRACE_S)
    assert (cluster.view.is_lost("gpu-1"), cluster.view.is_lost("gpu-2")) == (False, True)


def test_a_cluster_that_is_away_offers_nothing_until_it_is_back(api, cluster):
    api.status = 503
    api.cut()
    eventually(lambda: cluster.view.problem)
    cluster.poll()
    cluster.poll(3)
    assert cluster.leasable() == ["0", "1"], "a moment is no outage"
    cluster.poll(3)
    assert cluster.leasable() == []
    assert cluster.workers["gpu-1"].state is WorkerState.ONLINE, "its tasks go on"
    assert cluster.workers["gpu-1"].problems == ("its cluster does not answer",)
    api.status = None
    cluster.until(lambda: cluster.leasable() == ["0", "1"])
    for after_s in (0, 3, 3):
        cluster.poll(after_s, "the calls get no answer")
    assert cluster.leasable() == [], "a frozen server is known by its calls before its watches are silent for long"


def test_the_pods_of_leases_are_known_and_how_they_ended(api, watched):
    api.put("nodes", a_node("gpu-1"))
    cluster = watched()
    waiting = {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    ]}  # fmt: skip
    api.put("pods", ours("o", "l1", [0], node=None), waiting)
    pod = eventually(lambda: cluster.view.pods().get("l1"))
    assert str(pod) == "pod default/o (unschedulable): 0/1 nodes are available"
    assert (pod.is_waiting, pod.is_over) == (True, False)
    api.set_status("o", {"phase": "Running"})
    eventually(lambda: not cluster.view.pods()["l1"].is_waiting)
    api.drop("pods", "o", "default")
    deleted = eventually(lambda: cluster.view.deleted.get("l1"))
    assert (deleted.state.cause, deleted.is_over, cluster.view.pods()) == ("deleted", True, {})


def test_a_pod_that_failed_before_it_was_deleted_has_failed(api, watched):
    cluster = watched()
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    api.put("pods", ours("o", "l1", [0]), evicted)
    eventually(lambda: cluster.view.pods().get("l1"))
    api.drop("pods", "o", "default")
    deleted = eventually(lambda: cluster.view.deleted.get("l1"))
    assert str(deleted) == "pod default/o (evicted): The node was low on resource: memory."


def test_a_pod_that_its_kubelet_ended_for_its_deletion_was_deleted(api, watched):
    cluster = watched()
    api.put("pods", ours("o", "l1", [0]))
    killed = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-01T00:00:30Z"}}
    base = {"name": "base", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": killed}
    status, deletion = {"phase": "Failed", "containerStatuses": [base]}, {"deletionTimestamp": "2026-01-01T00:00:30Z"}
    api.set_status("o", status, deletionGracePeriodSeconds=30, **deletion)
    pod = eventually(lambda: next((pod for pod in cluster.view.pods().values() if pod.is_over), None))
    assert pod.state.cause == "deleted"


def test_the_running_one_of_two_pods_of_a_lease_counts(api, watched):
    cluster = watched()
    api.put("pods", ours("a", "l1", [0]), {"phase": "Failed"})
    api.put("pods", ours("b", "l1", [0]))
    api.put("pods", ours("c", "l1", [0]), {"phase": "Failed"})
    eventually(lambda: "l1" in cluster.view.pods() and cluster.view.pods()["l1"].name == "b")


def publish_gpus(api, count):
    """A driver publishes so many GPUs of gpu-1, which has no device plugin."""
    api.have_claims("gpu.nvidia.com")
    api.put("nodes", a_bare_node())
    api.put("resourceslices", a_slice("gpu-1", [a_gpu(number) for number in range(count)]))


def a_bare_node(name="gpu-1"):
    """A node without device plugins and feature discovery."""
    node = a_node(name)
    for amounts in ("allocatable", "capacity"):
        node["status"][amounts] = {"cpu": "8", "memory": "64Gi"}
    node["metadata"]["labels"] = {}
    return node


def accelerators(cluster, node="gpu-1"):
    return {d.id.rpartition("/")[2]: d for d in cluster.workers[node].devices if d.kind != "cpu"}


def test_a_node_with_slices_only_is_a_worker_with_gpus(api, watched):
    publish_gpus(api, 2)
    cluster = watched()
    cluster.poll()
    assert list(accelerators(cluster)) == ["gpu-0", "gpu-1"]
    assert cluster.workers["gpu-1"].devices[1].model == "a100-sxm4-80gb"


def test_devices_are_not_offered_while_the_claims_can_not_be_read(api, watched):
    publish_gpus(api, 1)
    api.forbidden.add("/apis/resource.k8s.io/v1/resourceclaims")
    cluster = watched()
    cluster.until(lambda: "gpu-1" in cluster.workers and accelerators(cluster))
    cluster.until(lambda: "resource claims of the cluster are unknown: 403" in accelerators(cluster)["gpu-0"].problem)
    api.forbidden.clear()
    cluster.until(lambda: accelerators(cluster)["gpu-0"].problem is None)


def test_the_taint_of_a_device_is_seen_and_so_is_its_end(api, watched):
    publish_gpus(api, 1)
    cluster = watched()
    cluster.poll()
    tainted = a_gpu(0, taints=[{"key": "xid", "value": "79", "effect": "NoExecute"}])
    api.put("resourceslices", a_slice("gpu-1", [tainted]))
    cluster.until(lambda: accelerators(cluster)["gpu-0"].problem == "device taints: xid=79:NoExecute")
    api.put("resourceslices", a_slice("gpu-1", [a_gpu(0)]))
    cluster.until(lambda: accelerators(cluster)["gpu-0"].problem is None)


def test_devices_that_a_device_plugin_offers_are_not_offered_twice(api, watched):
    api.have_claims("gpu.nvidia.com")
    api.put("nodes", a_node("gpu-1", gpus=2))
    api.put("resourceslices", a_slice("gpu-1", [a_gpu(0), a_gpu(1)]))
    cluster = watched()
    cluster.poll()
    assert cluster.leasable() == ["0", "1"]


def test_the_claim_of_a_leases_pod_names_its_devices(api, watched):
    publish_gpus(api, 2)
    annotations = {DEVICES_ANNOTATION: "gpu.nvidia.com/gpu-1/gpu-1"}
    pod = api.put("pods", a_pod("o", "gpu-1", annotations=annotations, lease="l1"))
    cluster = watched()
    cluster.poll()
    assert cluster.view.claim_notes("l1") == []
    api.put("resourceclaims", a_claim("o-devices", ("gpu-1", "gpu-1"), pod_uid=pod["metadata"]["uid"]))
    assert eventually(lambda: cluster.view.claim_notes("l1")) == ["gpu.nvidia.com/gpu-1/gpu-1"]
    cluster.poll()
    assert all(device.leasable for device in accelerators(cluster).values())
    api.put("resourceclaims", a_claim("foreign", ("gpu-1", "gpu-0")))
    cluster.until(lambda: accelerators(cluster)["gpu-0"].problem == "the claim default/foreign has it")
    api.drop("resourceclaims", "foreign", "default")
    cluster.until(lambda: accelerators(cluster)["gpu-0"].problem is None)


def test_a_cluster_without_claims_is_asked_once_and_said_nothing_about(api, watched, caplog):
    api.put("nodes", a_node("gpu-1"))
    watched().poll()
    assert [path for _, path, _ in api.requests if "resource.k8s.io" in path] == ["/apis/resource.k8s.io/v1/"]
    assert "404" not in caplog.text
