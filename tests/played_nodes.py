"""Nodes of a real control plane with simulated kubelets: they send reports, and set pod states as a test says."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.engines.kubernetes.fake_api import a_node
from tests.waiting import eventually

BEAT_S = 1.0
LEASES = "kube-node-lease"
"""The namespace in which kubelets say that they are there."""


@contextlib.contextmanager
def played_nodes(api_client: client.ApiClient) -> "Iterator[PlayedNodes]":
    """None at first; those that were added are deleted at the end, and the pods of all namespaces with them."""
    nodes = PlayedNodes(api_client)
    nodes.start()
    try:
        yield nodes
    finally:
        nodes.stop()


class PlayedNodes:
    """What the kubelets of some nodes say to the API."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self.api = client.CoreV1Api(api_client)
        self._leases = client.CoordinationV1Api(api_client)
        self._reporting: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        """Register the node and start its reports."""
        self._thread.start()

    def stop(self) -> None:
        """End, and leave nothing."""
        self._stopped.set()
        self._thread.join()
        for pod in self.api.list_pod_for_all_namespaces().items:
            self.drop(pod.metadata.name, pod.metadata.namespace)
        for node in self.api.list_node().items:
            self.api.delete_node(node.metadata.name)

    def add(
        self,
        name: str = "gpu-1",
        gpus: int = 2,
        *,
        amounts: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """A node that registers itself, with GPUs or other devices; returns once pods may be placed there."""
        node = a_node(name, gpus)
        node["metadata"]["labels"] |= labels or {}
        node["spec"] = {"taints": list(taints)} if taints else {}
        for kind in ("capacity", "allocatable"):
            node["status"][kind] = {**node["status"][kind], "pods": "110", **(amounts or {})}
        node["status"]["conditions"][0] |= {"reason": "KubeletReady", "message": "played"}
        self.api.create_node(node)
        lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name, "renewTime": _now()}}
        with contextlib.suppress(client.ApiException):  # it is there: a node had this name before
            self._leases.create_namespaced_lease(LEASES, lease)
        self._reporting.add(name)
        eventually(lambda: not self._is_new(name))

    def patch_status(self, name: str, **status: Any) -> None:
        """What a kubelet says of its node from now on: ``allocatable``, ``capacity``, ``conditions``."""
        self.api.patch_node_status(name, {"status": status})

    def resume_reports(self, name: str) -> None:
        """Let the node send reports again."""
        self._reporting.add(name)

    def stop_reports(self, name: str) -> None:
        """Stop the reports of the node."""
        self._reporting.discard(name)

    def sends_reports(self, name: str) -> bool:
        """Whether the node sends reports."""
        return name in self._reporting

    def put(self, name: str, namespace: str, phase: str, state: Mapping[str, Any] | None = None, **more: Any) -> None:
        """A pod as its kubelet sees it; ``state`` is that of its container ``base``."""
        status: dict[str, Any] = {"phase": phase, **more}
        if state is not None:
            container = {"name": "base", "image": "i", "imageID": "", "ready": "running" in state, "restartCount": 0}
            status["containerStatuses"] = [{**container, "state": dict(state)}]
        self.api.patch_namespaced_pod_status(name, namespace, {"status": status})

    def kill(self, name: str, namespace: str) -> None:
        """End a deleted pod: kill its container when its time is over, and remove the pod."""
        at = self.api.read_namespaced_pod(name, namespace).metadata.deletion_timestamp.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.put(name, namespace, "Failed", {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": at}})
        self.drop(name, namespace)

    def drop(self, name: str, namespace: str) -> None:
        """A pod's processes have ended, and it is forgotten: what a kubelet says last of a pod that is deleted."""
        with contextlib.suppress(client.ApiException):  # it is gone
            self.api.delete_namespaced_pod(name, namespace, grace_period_seconds=0)

    def _is_new(self, name: str) -> bool:
        """Whether the controllers still keep pods off it, as off each node that has just come."""
        taints = self.api.read_node(name).spec.taints or ()
        return any(taint.key == "node.kubernetes.io/not-ready" for taint in taints)

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            for name in list(self._reporting):
                with contextlib.suppress(client.ApiException, HTTPError):  # its API server is away
                    self._leases.patch_namespaced_lease(name, LEASES, {"spec": {"renewTime": _now()}})
                    self.patch_status(name, conditions=[{"type": "Ready", "status": "True", "reason": "KubeletReady"}])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
