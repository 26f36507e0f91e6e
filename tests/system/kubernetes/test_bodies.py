"""Objects that are sent to a cluster, as a real API server understands them.

A server drops an unknown field silently. So each answer is compared with what was sent.
"""

from itertools import chain
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes import client
from kubernetes.utils.quantity import parse_quantity

from hetero_airflow.engines.kubernetes.options import ClusterOptions
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_override import lease_override, lease_parts
from hetero_airflow.engines.kubernetes.pods.pod_parts import pod_parts
from hetero_airflow.engines.kubernetes.resources import RESOURCES
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.operators import DevicePodOperator
from hetero_airflow.testing import a_lease

OPTIONS = ClusterOptions(
    resources={"xilinx/u250": "xilinx.com/fpga-xilinx_u250_xdma-0"},
    priority_classes={"high": "gpu-high", "low": "gpu-low"},
)
BARE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train"},
    "spec": {"containers": [{"name": "base", "image": "i"}], "restartPolicy": "Never"},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "any gpu": {"device": "gpu"},
    "model and size": {"device": "nvidia/a100-40gb:2", "quota": {"cpus": 8, "host_memory": "64GiB"}},
    "least memory": {"device": {"vendor": "nvidia", "memory": "24GiB.."}},
    "mig": {"device": "mig-1g.10gb"},
    "mig with media": {"device": "mig-1g.10gb+me"},
    "share": {"device": "gpu:0.5"},
    "amd": {"device": "mi300x"},
    "intel": {"device": {"vendor": "intel", "kind": "gpu"}},
    "ascend": {"device": "910b:2"},
    "ascend inference": {"device": "310p"},
    "tpu": {"device": "tpu:4"},
    "fpga": {"device": "xilinx/u250"},
    "cpu": {"device": "cpu:4", "quota": {"host_memory": 80 * 10**9}},
    "alternatives": {"device": ["h100:2", "a100:4", "cpu:4"]},
    "set of models": {"device": {"a100", "h100"}},
    "driver and runtime": {
        "device": "nvidia",
        "driver": ">=550.54,<580",
        "runtime": {"cuda": ">=12.4", "torch": ">=2.8"},
    },
    "labels": {"device": "gpu", "labels": {"topology.kubernetes.io/zone": "eu-1a", "rack": "!7"}},
    "high": {"device": "gpu", "priority": "high"},
    "low": {"device": "cpu", "priority": "low"},
}


class Server:
    """The API server. The tests make dry runs only."""

    def __init__(self, api: client.CoreV1Api) -> None:
        self.api = api

    def lost(self, pod: dict[str, Any]) -> list[str]:
        """Paths of the values that were sent and come back changed."""
        made = self.api.create_namespaced_pod("airflow", pod, dry_run="All")
        return list(differences(pod, self.api.api_client.sanitize_for_serialization(made)))


@pytest.fixture(scope="module")
def server(plane):
    return Server(client.CoreV1Api(plane.connect()))


def differences(sent: Any, made: Any, path: str = "") -> Any:
    """Paths of the values that were sent and differ in the answer. Values that the server adds are no difference."""
    if isinstance(sent, dict) and isinstance(made, dict):
        return chain.from_iterable(differences(value, made.get(key), f"{path}.{key}") for key, value in sent.items())
    if isinstance(sent, list) and isinstance(made, list) and len(sent) <= len(made):
        pairs = enumerate(zip(sent, made, strict=False))
        return chain.from_iterable(differences(left, right, f"{path}[{number}]") for number, (left, right) in pairs)
    is_left_out = made is None and not sent  # the answer leaves out empty lists and false flags
    if sent == made or is_left_out or (isinstance(made, str) and _amount(sent) == _amount(made)):
        return iter(())
    return iter((path.removeprefix("."),))


def _amount(text: str) -> Any:
    """A quantity in one notation: a server writes 1024Ki as 1Mi."""
    try:
        return parse_quantity(text)
    except ValueError:
        return text


@pytest.mark.parametrize("name", REQUESTS)
def test_each_kind_of_request_is_a_pod_that_is_taken_as_it_is(server, name):
    parts = pod_parts(DeviceRequest.parse(**REQUESTS[name]), OPTIONS, queue="team-a")
    assert server.lost(complete_pod(BARE, parts)) == []


@pytest.mark.parametrize("resource", [*RESOURCES.values(), "nvidia.com/mig-1g.10gb", "cpu"])
def test_each_kind_of_lease_is_a_pod_that_is_taken_as_it_is(server, resource):
    """KubernetesExecutor's own code merges the override, as it does before it sends the pod."""
    is_cpu = resource == "cpu"
    ids = ["cpu"] if is_cpu else [f"{resource}/0", f"{resource}/1"]
    devices = tuple(
        Device(id=id_, vendor="nvidia", kind="cpu" if is_cpu else "gpu", model="m", index=number, memory_bytes=2**40,
               cores=tuple(range(8)) if is_cpu else ())
        for number, id_ in enumerate(ids)
    )  # fmt: skip
    worker = Worker(id="gpu-1", host="gpu-1", engine="kubernetes", devices=devices)
    claims = (Claim("cpu", 4000, 2**30 + 2**10),) if is_cpu else tuple(Claim(id_, 1000) for id_ in ids)
    lease = a_lease("r", "gpu-1").model_copy(update={"claims": claims})
    override = lease_override(BARE, None, lease_parts(lease, worker, "u", "gpu-high"), "gpu-1")
    merged = PodGenerator.reconcile_pods(
        PodGenerator.deserialize_model_dict(BARE), PodGenerator.deserialize_model_dict(override)
    )
    pod = PodGenerator.serialize_pod(merged)
    assert server.lost(pod) == []
    amounts = {"cpu": "4", "memory": "1048577Ki"} if is_cpu else {resource: "2"}
    assert pod["spec"]["containers"][0]["resources"]["limits"] == amounts


@pytest.mark.parametrize("name", REQUESTS)
def test_the_pod_of_the_operator_is_taken_as_it_is(server, name, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_RESOURCES", '{"xilinx/u250": "xilinx.com/fpga-xilinx_u250_xdma-0"}')
    monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_PRIORITY_CLASSES", '{"high": "gpu-high", "low": "gpu-low"}')
    fields = dict(REQUESTS[name])
    operator = DevicePodOperator(
        task_id="t", name="t", namespace="airflow", image="i", kueue_queue="team-a", do_xcom_push=True,
        node_labels=fields.pop("labels", None), **fields,
    )  # fmt: skip
    (pod,) = operator.manifests()
    assert server.lost(pod) == []


def test_a_server_that_does_not_know_a_field_is_found_out(server):
    pod = complete_pod(BARE, pod_parts(DeviceRequest.parse("gpu"), OPTIONS))
    pod["spec"]["containers"][0]["securityContext"]["newerThanTheServer"] = "x"
    assert server.lost(pod) == ["spec.containers[0].securityContext.newerThanTheServer"]
