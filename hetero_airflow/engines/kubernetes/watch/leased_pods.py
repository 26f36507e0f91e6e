"""The pods of leases: their states, and the last states of deleted ones."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubernetes.utils.quantity import parse_quantity  # type: ignore[import-untyped]

from hetero_airflow.engines.engine import TerminationCause
from hetero_airflow.engines.kubernetes.claims.claim_template import POD_CLAIM_NAME
from hetero_airflow.engines.kubernetes.pods.pod_merge import leased_container
from hetero_airflow.engines.kubernetes.pods.pod_override import DEVICES_ANNOTATION, sealed_lease
from hetero_airflow.engines.kubernetes.states.causes import WAIT_CODES, PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState, pod_state
from hetero_airflow.engines.kubernetes.watch.informer import model_of
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.run import RunEnd

MAX_DELETED_PODS = 10_000
"""Number of deleted pods whose last state is remembered."""

_ENDED_PHASES = ("Succeeded", "Failed")

_LOST_ENDS = (RunEnd.LOST, RunEnd.PAUSED)


@dataclass(frozen=True, slots=True)
class LeasedPod:
    """The last known state of a pod."""

    lease_id: str
    name: str
    namespace: str
    uid: str
    node: str | None
    state: PodState
    devices: frozenset[str] = frozenset()
    """Ids of the device slots that its lease holds."""
    has_claim: bool = False
    """It claims devices of its lease (DRA)."""
    is_over: bool = False
    """None of its processes runs, or will ever run."""
    is_ending: bool = False
    """It was deleted and still runs."""
    memory_bytes: int | None = None
    """Memory limit of the container that has the devices; None for no limit."""

    @property
    def is_waiting(self) -> bool:
        """Whether none of its processes has started."""
        return not self.is_over and self.state.cause in WAIT_CODES

    @property
    def termination_cause(self) -> TerminationCause | None:
        """Why the pod ended, if its node failed, or it was evicted, preempted, refused, deleted, or killed for memory.

        If the kernel killed only the task's process, its supervisor reports that before the pod ends.
        """
        if self.state.cause is PodCause.NODE_BROKEN:
            return TerminationCause(worker_problem=self.state.message)
        if self.state.end in _LOST_ENDS:
            return TerminationCause()
        # without an exit code it was a container that prepares the pod, and its memory is not the task's
        is_killed = self.state.cause is PodCause.OOM_KILLED and self.state.exit_code not in (None, 0)
        return TerminationCause(is_out_of_memory=True, host_memory_bytes=self.memory_bytes) if is_killed else None

    def __str__(self) -> str:
        message = f": {self.state.message}" if self.state.message else ""
        return f"pod {self.namespace}/{self.name} ({self.state.cause.value.replace('_', ' ')}){message}"


def read_pod(item: Mapping[str, Any], signer: GrantSigner) -> LeasedPod | None:
    """The pod in a JSON value; None if it belongs to no lease of this Airflow."""
    metadata = item["metadata"]
    lease_id = sealed_lease(metadata, signer)
    if lease_id is None:
        return None
    pod = model_of(_without_bulk(item), "V1Pod")
    devices = (metadata.get("annotations") or {}).get(DEVICES_ANNOTATION, "")
    limits = (leased_container(item["spec"]["containers"]).get("resources") or {}).get("limits") or {}
    return LeasedPod(
        lease_id=lease_id,
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        node=item["spec"].get("nodeName"),
        state=pod_state(pod),
        devices=frozenset(filter(None, devices.split(","))),
        has_claim=any(claim["name"] == POD_CLAIM_NAME for claim in item["spec"].get("resourceClaims") or ()),
        is_over=(item.get("status") or {}).get("phase") in _ENDED_PHASES,
        is_ending=metadata.get("deletionTimestamp") is not None,
        memory_bytes=int(parse_quantity(limits["memory"])) if "memory" in limits else None,
    )


class DeletedPods:
    """Deleted pods by lease. Safe for several threads."""

    def __init__(self) -> None:
        self._pods: dict[str, LeasedPod] = {}
        self._lock = threading.Lock()

    def add(self, pod: LeasedPod) -> None:
        """Remember a pod. If it had not ended, its deletion ended it."""
        if not pod.is_over and pod.state.end is None:
            state = PodState(PodCause.DELETED, pod.state.message, node=pod.node)
            pod = replace(pod, state=state)
        with self._lock:
            self._pods[pod.lease_id] = replace(pod, is_over=True)
            if len(self._pods) > MAX_DELETED_PODS:
                del self._pods[next(iter(self._pods))]

    def get(self, lease_id: str) -> LeasedPod | None:
        """The deleted pod of a lease; None if there is none."""
        with self._lock:
            return self._pods.get(lease_id)

    def values(self) -> list[LeasedPod]:
        """All remembered pods."""
        with self._lock:
            return list(self._pods.values())


def _without_bulk(item: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that show a pod's state. Models of its volumes and environment are slow to make."""
    metadata, spec = item["metadata"], item["spec"]
    names = ("name", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"nodeName": spec.get("nodeName"), "containers": [{"name": c["name"]} for c in spec["containers"]]},
        "status": item.get("status") or {},
    }
