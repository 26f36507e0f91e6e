"""What of a node is not to be had, since pods that are not placed here, or are still ending, have it. Pure."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiClient  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.pods.pod_override import resource_of_slot
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.engines.kubernetes.watch.nodes import pod_amounts
from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import Worker

_RESIDENT_OWNERS = ("DaemonSet", "Node")
"""Owners whose pods stay: of a DaemonSet, and static ones. Others come and go, and what waits for them only waits."""

_FIELDS = ("name", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that was not placed here."""

    node: str
    amounts: Mapping[str, Decimal]
    """Resource → how much of it."""
    is_resident: bool
    version: tuple[str, object]
    """The same as long as the rest is."""


@dataclass(slots=True)
class NodeUsage:
    """What others have of a node."""

    amounts: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """Of devices by all pods, of cores and memory by those that stay."""
    own: frozenset[str] = frozenset()
    """Slots of leases whose pods are there."""
    ending: frozenset[str] = frozenset()
    """Those of them whose pods were told to end and have not yet."""


def read_foreign_pod(item: Mapping[str, Any], before: ForeignPod | None) -> ForeignPod | None:
    """The pod of a JSON value that has a node; None for any other."""
    metadata, spec = item["metadata"], item["spec"]
    if not spec.get("nodeName") or (item.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    version = (spec["nodeName"], metadata.get("generation"))
    if before is not None and before.version == version and version[1] is not None:
        return before
    bare = {name: spec[name] for name in ("overhead", "resources") if name in spec}
    for name in ("containers", "initContainers"):
        bare[name] = [{key: one[key] for key in _FIELDS if key in one} for one in spec.get(name) or ()]
    pod = _API.deserialize(SimpleNamespace(data=json.dumps({"spec": bare})), "V1Pod")
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}
    return ForeignPod(spec["nodeName"], pod_amounts(pod), bool(owners.intersection(_RESIDENT_OWNERS)), version)


def node_usages(foreign_pods: Iterable[ForeignPod], pods: Iterable[LeasedPod]) -> dict[str, NodeUsage]:
    """Node → what is had of it."""
    uses: dict[str, NodeUsage] = defaultdict(NodeUsage)
    for foreign_pod in foreign_pods:
        amounts = uses[foreign_pod.node].amounts
        for name, amount in foreign_pod.amounts.items():
            if "/" in name or foreign_pod.is_resident:
                amounts[name] += amount
    for pod in pods:
        if pod.node is not None and not pod.is_over:
            use = uses[pod.node]
            use.own |= pod.devices
            use.ending |= pod.devices if pod.is_ending else frozenset()
    return dict(uses)


def without_usage(worker: Worker, use: NodeUsage) -> Worker:
    """The worker with what is left of it: slots that others have are not leasable, and cores that stay taken are gone.

    Which devices others have, nobody says; of the slots that no lease of ours has, the last ones stand for them.
    """
    taken = {name: math.ceil(amount) for name, amount in use.amounts.items() if "/" in name}
    devices: list[Device] = []
    for device in reversed(worker.devices):
        if device.kind == "cpu":
            devices.append(_remaining_cpu(device, use.amounts))
            continue
        resource, problem = resource_of_slot(device.id), device.problem
        if device.id in use.ending:
            problem = problem or "the pod that had it is still ending"
        elif device.leasable and device.id not in use.own and taken.get(resource, 0) > 0:
            taken[resource] -= 1
            problem = "a pod that was not placed here has it"
        is_had = problem != device.problem
        devices.append(device.model_copy(update={"leasable": False, "problem": problem}) if is_had else device)
    return worker.model_copy(update={"devices": tuple(reversed(devices))})


def _remaining_cpu(cpu: Device, amounts: Mapping[str, Decimal]) -> Device:
    cores = max(len(cpu.cores) - math.ceil(amounts.get("cpu", 0)), 0)
    memory = max(cpu.memory_bytes - math.ceil(amounts.get("memory", 0)), 0)
    return cpu.model_copy(update={"cores": cpu.cores[:cores], "memory_bytes": memory})


_API = ApiClient()
