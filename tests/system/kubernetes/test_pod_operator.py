"""DevicePodOperator on a real control plane, with the rights of the role ``airflow-pods`` alone.

The kubelet is simulated: a thread of the test reports that pods run and end.
"""

import contextlib
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException
from kubernetes import client

from hetero_airflow.operators import DevicePodOperator
from tests.system.kubernetes.test_credentials import Revocable
from tests.waiting import eventually

RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ACCOUNT = "pod-maker"


@pytest.fixture(scope="module")
def config(plane, tmp_path_factory):
    """The kubeconfig of a task with the rights of the role."""
    api_client = plane.connect()
    client.CoreV1Api(api_client).create_namespaced_service_account("airflow", {"metadata": {"name": ACCOUNT}})
    client.RbacAuthorizationV1Api(api_client).create_namespaced_role_binding(
        "airflow",
        {
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "airflow-pods"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "airflow"}],
        },
    )
    path = tmp_path_factory.mktemp("task") / "kubeconfig"
    path.write_text(json.dumps(plane.kubeconfig(plane.token(ACCOUNT))))
    return str(path)


@pytest.fixture
def operator(config, nodes):
    nodes.add("gpu-1")

    def make(**arguments):
        return DevicePodOperator(
            task_id="t", name="t", namespace="airflow", image="i", config_file=config, in_cluster=False,
            kubernetes_conn_id=None, get_logs=False, startup_check_interval_seconds=0.1,
            base_container_status_polling_interval=0.1, device="nvidia:2", **arguments,
        )  # fmt: skip

    return make


@contextlib.contextmanager
def kubelet(nodes, *steps):
    """Carries out these steps on the first bound pod, one after the other."""

    def play():
        pod = eventually(
            lambda: next((candidate for candidate in listed() if candidate.spec.node_name), None), timeout_s=60
        )
        for step in steps:
            step(pod.metadata.name)

    def listed():
        return nodes.api.list_namespaced_pod("airflow").items

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def a_context():
    ti = SimpleNamespace(
        dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1, max_tries=1, xcom_push=lambda **_: None
    )
    return {"ti": ti, "dag": None, "run_id": "r", "dag_run": SimpleNamespace(run_id="r")}


def test_the_pod_is_placed_run_and_deleted(operator, nodes, plane):
    seen = []

    def end(name):
        seen.append(nodes.api.read_namespaced_pod(name, "airflow"))
        nodes.put(name, "airflow", "Running", RUNS)
        nodes.put(name, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})

    with kubelet(nodes, end):
        operator().execute(a_context())
    (pod,) = seen
    assert (pod.spec.node_name, pod.spec.containers[0].resources.limits) == ("gpu-1", {"nvidia.com/gpu": "2"})
    assert nodes.api.list_namespaced_pod("airflow").items == []
    refused = [request for request in plane.requests(ACCOUNT) if request["responseStatus"]["code"] == 403]
    assert [(request["verb"], request["objectRef"]["resource"]) for request in refused] == []


def test_a_kubeconfig_that_is_replaced_is_used_at_once(operator, nodes, plane, config):
    token = Revocable(plane, ACCOUNT, lambda token: Path(config).write_text(json.dumps(plane.kubeconfig(token))))

    def end(name):
        token.replace()
        time.sleep(0.5)  # some reports are asked for in vain
        nodes.put(name, "airflow", "Running", RUNS)
        nodes.put(name, "airflow", "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})

    with kubelet(nodes, end):
        operator().execute(a_context())
    assert nodes.api.list_namespaced_pod("airflow").items == []


@pytest.mark.parametrize("how", ["deleted", "evicted by the API", "evicted by its kubelet"])
def test_a_pod_that_is_taken_away_costs_no_retry(operator, nodes, how):
    def run(name):
        nodes.put(name, "airflow", "Running", RUNS)

    def take(name):
        if how == "evicted by its kubelet":
            terminated = {"terminated": {"exitCode": 137, "reason": "Error"}}
            nodes.put(name, "airflow", "Failed", terminated, reason="Evicted", message="The node was low on memory.")
            return
        if how == "deleted":
            nodes.api.delete_namespaced_pod(name, "airflow")
        else:
            nodes.api.create_namespaced_pod_eviction(name, "airflow", {"metadata": {"name": name}})
        nodes.kill(name, "airflow")

    with kubelet(nodes, run, take), pytest.raises(AirflowRescheduleException):
        operator().execute(a_context())


def test_a_failure_of_its_own_is_left_to_the_retries(operator, nodes):
    def fail(name):
        nodes.put(name, "airflow", "Failed", {"terminated": {"exitCode": 1, "reason": "Error"}})

    with kubelet(nodes, fail), pytest.raises(AirflowException, match="returned a failure"):
        operator().execute(a_context())


def test_a_cluster_that_knows_no_claims_is_told_and_no_pod_is_made(operator, nodes):
    """Before 1.34. An older server would drop the claim from the pod silently."""
    groups = {group.name for group in client.ApisApi(nodes.api.api_client).get_api_versions().groups}
    if "resource.k8s.io" in groups:
        pytest.skip("this server knows claims")
    with pytest.raises(AirflowFailException, match=r"Kubernetes 1\.34|create resourceclaimtemplates"):
        operator(dra=True).execute(a_context())
    assert nodes.api.list_namespaced_pod("airflow").items == []
