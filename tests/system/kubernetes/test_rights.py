"""The rights of docs/kubernetes/rbac.yaml, checked with the audit log of a real API server.

The kubelet is simulated, as in the other tests of this folder.
"""

import signal

import pytest
import yaml
from kubernetes import client

from hetero_airflow.engines.engine import LeasedProcess
from tests.control_plane import ControlPlane
from tests.engines.kubernetes.fake_api import a_pod
from tests.system.kubernetes.conftest import DOCUMENTS
from tests.system.kubernetes.leasing import ACCOUNT, leasing
from tests.waiting import eventually

UNUSED = {
    ("nodes", "get"): "reads and watches come as one right, as in Kubernetes' own roles",
    ("pods", "get"): "DevicePodOperator reads its pod",
    ("events", "list"): "a quota that refuses a claim is named there; DevicePodOperator tells of those of its pod",
    ("events", "watch"): "and in Airflow's triggerer, where it is deferrable",
    ("pods/log", "get"): "Airflow's API server reads the logs of pods that run",
}
"""Rights that the scheduler itself does not use."""


def granted() -> set[tuple[str, str]]:
    rules = [
        rule
        for document in yaml.safe_load_all((DOCUMENTS / "rbac.yaml").read_text())
        for rule in document.get("rules", ())
    ]
    core = (rule for rule in rules if "" in rule["apiGroups"])  # DevicePodOperator has those of other groups
    return {(what, verb) for rule in core for what in rule["resources"] for verb in rule["verbs"]}


def codes_by_right(plane: ControlPlane, since: int) -> dict[tuple[str, str], set[int]]:
    """(resource, verb) → status codes, for the requests of the scheduler's account from number `since` on."""
    codes: dict[tuple[str, str], set[int]] = {}
    for request in plane.requests(ACCOUNT)[since:]:
        if "objectRef" in request and not request["objectRef"].get("apiGroup"):
            what = request["objectRef"]
            name = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            codes.setdefault((name, request["verb"]), set()).add(request["responseStatus"]["code"])
    return codes


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_scheduler_is_refused_nothing_and_uses_what_it_is_given(plane, nodes, tmp_path):
    nodes.add("gpu-1")
    before = len(plane.requests(ACCOUNT))
    with leasing(plane, tmp_path) as bench:
        key, lease = bench.hand_over()
        name = bench.bound(lease)
        eventually(lambda: bench.engine.cluster.status(lease.id).message)
        bench.engine.executor.adopt(key, "airflow", name)
        bench.engine.signal(LeasedProcess(lease, "success", is_ours=True), signal.SIGTERM)
        eventually(lambda: bench.pod(lease).metadata.deletion_timestamp)
    codes_seen = codes_by_right(plane, before)
    assert not [what for what, codes in codes_seen.items() if 403 in codes]
    assert codes_seen.keys() == granted() - UNUSED.keys()


def test_what_was_not_given_is_refused(plane):
    api = client.CoreV1Api(plane.connect(plane.token(ACCOUNT)))
    for ask in (
        lambda: api.list_namespaced_secret("airflow"),
        lambda: api.create_namespaced_pod("default", a_pod("p")),
        lambda: api.patch_node("gpu-1", {"spec": {"unschedulable": True}}),
        lambda: api.delete_namespaced_pod("p", "default"),
    ):
        with pytest.raises(client.ApiException, match="Forbidden"):
            ask()


def test_the_account_of_tasks_may_read_nothing(plane):
    api = client.CoreV1Api(plane.connect(plane.token("airflow-task")))
    for ask in (api.list_node, api.list_pod_for_all_namespaces, lambda: api.list_namespaced_pod("airflow")):
        with pytest.raises(client.ApiException, match="Forbidden"):
            ask()
