"""The pods of leases on devices that a DRA driver publishes."""

from collections import Counter
from types import SimpleNamespace

import pytest

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.model.lease import Claim
from tests.engines.kubernetes.engine.running_engine import DONE
from tests.engines.kubernetes.slices.played_slices import a_claim, a_gpu, a_slice
from tests.engines.kubernetes.watch.test_cluster_view import a_bare_node
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

GPU, OTHER_GPU = "gpu.nvidia.com/dra-1/gpu-1", "gpu.nvidia.com/dra-1/gpu-0"


@pytest.fixture
def api(cluster):
    """The API server, with a node that has slices only."""
    cluster.api.put("nodes", a_bare_node("dra-1"))
    cluster.api.put("resourceslices", a_slice("dra-1", [a_gpu(0), a_gpu(1)]))
    eventually(lambda: len(cluster.learn().get("dra-1", SimpleNamespace(devices=())).devices) == 3)
    cluster.api.requests.clear()
    yield cluster.api
    cluster.api.forbidden.clear()
    cluster.api.objects["resourceclaimtemplates"].clear()


@pytest.fixture
def handed_over(api, cluster):
    """A lease of one GPU of slices, which was handed to the engine."""
    workload, lease = cluster.placed(node="dra-1")
    lease = lease.model_copy(update={"claims": (Claim(GPU, 1000),)})
    cluster.engine.hand_over(workload, lease, cluster.workers["dra-1"])
    return SimpleNamespace(key=workload.key, lease=lease)


def test_the_template_comes_before_the_pod_and_the_node_owns_it(api, cluster, handed_over):
    pod = cluster.made(handed_over.lease)
    name = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    template = api.objects["resourceclaimtemplates"]["default", name]
    node = api.objects["nodes"]["", "dra-1"]["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "dra-1", "uid": node["uid"]}
    assert template["metadata"]["ownerReferences"] == [owner]
    assert "hetero-airflow/claim-template" not in pod["metadata"]["annotations"]
    posts = [path.rpartition("/")[2] for method, path, _ in api.requests if method == "POST"]
    assert posts == ["resourceclaimtemplates", "pods"]


def test_the_claim_of_the_pod_is_told_with_its_device_and_its_state(api, cluster, handed_over):
    pod = cluster.made(handed_over.lease)
    state = {"driver": "gpu.nvidia.com", "pool": "dra-1", "device": "gpu-1"}
    waiting = [{**state, "conditions": [{"type": "Ready", "status": "False", "message": "resetting"}]}]
    claim = a_claim("c", ("dra-1", "gpu-1"), pod_uid=pod["metadata"]["uid"], states=waiting)
    api.put("resourceclaims", claim)
    eventually(lambda: f"{GPU}; {GPU} is not ready: resetting" in (cluster.status(handed_over.lease).message or ""))
    api.drop("resourceclaims", "c", "default")
    eventually(lambda: GPU not in cluster.status(handed_over.lease).message)


def test_a_task_on_slices_costs_two_calls_once_its_devices_were_leased(api, cluster):
    def run_one():
        workload, lease = cluster.placed(node="dra-1")
        lease = lease.model_copy(update={"claims": (Claim(GPU, 1000),)})
        cluster.engine.hand_over(workload, lease, cluster.workers["dra-1"])
        pod = cluster.made(lease)
        api.set_status(pod["metadata"]["name"], DONE)
        cluster.until(lambda: cluster.look(lease) is Liveness.GONE)
        cluster.until(lambda: pod["metadata"]["name"] not in {each["metadata"]["name"] for each in api.pods()})

    run_one()
    api.requests.clear()
    for _ in range(3):
        run_one()
    calls = Counter(method for method, _, _ in api.requests)
    assert {method: calls[method] for method in calls.keys() - {"GET"}} == {"POST": 3, "DELETE": 3}


def problem_of(cluster, device_id):
    """Why a device of the node is not offered."""
    return next(device.problem for device in cluster.learn()["dra-1"].devices if device.id == device_id)


def test_a_claim_that_is_edited_or_deleted_by_hand_is_named_and_frees_nothing(api, cluster, handed_over):
    pod = cluster.made(handed_over.lease)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    api.bind(name, "dra-1")
    api.put("resourceclaims", a_claim("c", ("dra-1", "gpu-1"), pod_uid=uid))
    api.set_status(name, {"phase": "Running"})
    eventually(lambda: (cluster.status(handed_over.lease).message or "").endswith(f"(running); {GPU}"))
    problem = f"the pod's claims do not have {GPU} of its lease: somebody has changed or deleted them"
    api.put("resourceclaims", a_claim("c", ("dra-1", "gpu-0"), pod_uid=uid))
    eventually(lambda: cluster.status(handed_over.lease).message.endswith(f"(running); {OTHER_GPU}; {problem}"))
    eventually(lambda: problem_of(cluster, OTHER_GPU) == "the claim default/c has it")
    api.drop("resourceclaims", "c", "default")
    eventually(lambda: cluster.status(handed_over.lease).message.endswith(f"(running); {problem}"))
    assert cluster.look(handed_over.lease) is Liveness.ALIVE
    assert handed_over.key not in cluster.reported


def test_a_claim_of_somebody_else_that_names_our_pod_takes_its_device_out(api, cluster, handed_over):
    pod = cluster.made(handed_over.lease)
    uid = pod["metadata"]["uid"]
    api.put("resourceclaims", a_claim("ours", ("dra-1", "gpu-1"), pod_uid=uid))
    api.put("resourceclaims", a_claim("theirs", ("dra-1", "gpu-0"), pod_uid=uid, namespace="other"))
    eventually(lambda: problem_of(cluster, OTHER_GPU) == "the claim other/theirs has it")
    assert cluster.look(handed_over.lease) is Liveness.ALIVE
    api.drop("resourceclaims", "ours", "default")
    api.drop("resourceclaims", "theirs", "other")


def test_the_quota_that_refuses_a_claim_is_read_from_the_pods_events(api, cluster, handed_over, monkeypatch):
    monkeypatch.setattr("hetero_airflow.engines.kubernetes.adapter._CLAIM_TIMEOUT_S", 0)
    pod = cluster.made(handed_over.lease)
    reference = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
    for number, uid in enumerate((reference["uid"], "another pod's")):
        event = {
            "metadata": {"name": f"e{number}", "namespace": "default"},
            "involvedObject": {"kind": "Pod", **reference, "uid": uid},
            "reason": "FailedResourceClaimCreation",
            "message": "PodResourceClaim hetero-devices: create ResourceClaim : resourceclaims.resource.k8s.io "
            f'"t-hetero-devices-x7k2p" is forbidden: exceeded quota: {"gpus" if number == 0 else "other"}, requested: '
            "count/resourceclaims.resource.k8s.io=1, used: count/resourceclaims.resource.k8s.io=1, limited: "
            "count/resourceclaims.resource.k8s.io=1",
        }
        api.put("events", event)
    cluster.until(lambda: cluster.look(handed_over.lease, "queued") and cluster.status(handed_over.lease).refusal)
    assert cluster.status(handed_over.lease).refusal.startswith("exceeded quota: gpus, requested: count/resource")
    cluster.until(lambda: cluster.look(handed_over.lease, "queued") and api.deletions)
    assert [name for name, _ in api.deletions] == [pod["metadata"]["name"]]
    reads = [path for method, path, _ in api.requests if method == "GET" and path.endswith("/events")]
    assert reads == ["/api/v1/namespaces/default/events"], "once"
    cluster.until(lambda: cluster.look(handed_over.lease, "queued") is Liveness.GONE)  # even if no watch saw the pod
