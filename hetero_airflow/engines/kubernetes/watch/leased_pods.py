"""The pods of leases: which there are, how they stand, and how those that are gone stood last."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiClient  # type: ignore[import-untyped]
from kubernetes.utils.quantity import parse_quantity  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.pods.pod_merge import leased_container
from hetero_airflow.engines.kubernetes.pods.pod_override import DEVICES_ANNOTATION, LEASE_LABEL
from hetero_airflow.engines.kubernetes.states.pod_state import MEANINGS, PodCause, PodState, pod_state

MAX_DELETED_PODS = 10_000
"""Pods that are gone, of which it is remembered how they stood."""

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class LeasedPod:
    """One pod, as last seen."""

    lease_id: str
    name: str
    namespace: str
    uid: str
    node: str | None
    state: PodState
    devices: frozenset[str] = frozenset()
    """Ids of the slots that its lease holds."""
    is_over: bool = False
    """No process of it runs any more, or ever will."""
    is_ending: bool = False
    """It was told to end."""
    memory_bytes: int | None = None
    """Limit of the container that has the devices; None for no limit."""

    @property
    def is_waiting(self) -> bool:
        """Whether none of its processes has begun."""
        return not self.is_over and MEANINGS[self.state.cause].waits is not None

    def __str__(self) -> str:
        told = f": {self.state.message}" if self.state.message else ""
        return f"pod {self.namespace}/{self.name} ({self.state.cause.value.replace('_', ' ')}){told}"


def read_pod(item: Mapping[str, Any], before: LeasedPod | None) -> LeasedPod | None:
    """The pod of a JSON value; None for one that is no lease's."""
    metadata = item["metadata"]
    lease_id = (metadata.get("labels") or {}).get(LEASE_LABEL)
    if lease_id is None:
        return None
    pod = _API.deserialize(SimpleNamespace(data=json.dumps(_without_bulk(item))), "V1Pod")
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
        is_over=(item.get("status") or {}).get("phase") in _ENDED,
        is_ending=metadata.get("deletionTimestamp") is not None,
        memory_bytes=int(parse_quantity(limits["memory"])) if "memory" in limits else None,
    )


class DeletedPods:
    """Pods that were deleted, by lease. Threads may share it."""

    def __init__(self) -> None:
        self._pods: dict[str, LeasedPod] = {}
        self._lock = threading.Lock()

    def add(self, pod: LeasedPod) -> None:
        """Remember a pod; one that had not ended by itself was ended by its deletion."""
        if not pod.is_over and pod.state.end is None:
            state = PodState(PodCause.DELETED, pod.state.message, node=pod.node)
            pod = replace(pod, state=state)
        with self._lock:
            self._pods[pod.lease_id] = replace(pod, is_over=True)
            if len(self._pods) > MAX_DELETED_PODS:
                del self._pods[next(iter(self._pods))]

    def get(self, lease_id: str) -> LeasedPod | None:
        """The pod of a lease, if it was there and is gone."""
        with self._lock:
            return self._pods.get(lease_id)

    def values(self) -> list[LeasedPod]:
        """All that are remembered."""
        with self._lock:
            return list(self._pods.values())


_API = ApiClient()


def _without_bulk(item: Mapping[str, Any]) -> dict[str, Any]:
    """What tells how a pod stands, without its volumes and environment: models of these are slow to make."""
    metadata, spec = item["metadata"], item["spec"]
    told = ("name", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {
        "metadata": {name: metadata[name] for name in told if name in metadata},
        "spec": {"nodeName": spec.get("nodeName"), "containers": [{"name": one["name"]} for one in spec["containers"]]},
        "status": item.get("status") or {},
    }
