"""What pods use of a node: foreign pods, and pods of leases that are still ending. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.pods.pod_override import resource_of_slot
from hetero_airflow.engines.kubernetes.watch.informer import model_of
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import Worker

_RESIDENT_OWNERS = ("DaemonSet", "Node")
"""Owners of pods that stay: DaemonSets, and nodes for static pods. Other pods end, and waiting for them is normal."""

_SAME_CHIPS = {
    "aws.amazon.com/neuroncore": "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice": "aws.amazon.com/neuron",
}
"""Resource → the one that counts the same chips. Cores of one chip count as so many chips, because nothing tells
which cores a pod has."""

_FIELDS = ("name", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that this plugin did not place."""

    node: str
    amounts: Mapping[str, Decimal]
    """Resource → amount."""
    is_resident: bool
    version: tuple[str, object]
    """Unchanged as long as the other fields are."""


@dataclass(slots=True)
class NodeUsage:
    """The part of a node that is in use."""

    amounts: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """Devices of all foreign pods; cores and memory of resident ones."""
    leased: frozenset[str] = frozenset()
    """Device slots of leases whose pods run on the node."""
    ending: frozenset[str] = frozenset()
    """Device slots of leases whose pods were deleted and still run."""


def read_foreign_pod(item: Mapping[str, Any], before: ForeignPod | None) -> ForeignPod | None:
    """The pod in a JSON value; None if it has no node or has ended."""
    metadata, spec = item["metadata"], item["spec"]
    if not spec.get("nodeName") or (item.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    version = (spec["nodeName"], metadata.get("generation"))
    if before is not None and before.version == version and version[1] is not None:
        return before
    reduced = {name: spec[name] for name in ("overhead", "resources") if name in spec}
    for name in ("containers", "initContainers"):
        reduced[name] = [{key: c[key] for key in _FIELDS if key in c} for c in spec.get(name) or ()]
    pod = model_of({"spec": reduced}, "V1Pod")
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}
    return ForeignPod(spec["nodeName"], pod_amounts(pod), bool(owners.intersection(_RESIDENT_OWNERS)), version)


def pod_amounts(pod: Any) -> dict[str, Decimal]:
    """Resource → amount that a pod takes of its node, in cores, bytes and devices.

    Counts as Kubernetes' scheduler does: containers and sidecars, or the largest init container if that is more.
    """
    running: dict[str, Decimal] = defaultdict(Decimal)
    for container in pod.spec.containers or ():
        _add(running, _requests(container))
    sidecars: dict[str, Decimal] = defaultdict(Decimal)
    most: dict[str, Decimal] = defaultdict(Decimal)
    for container in pod.spec.init_containers or ():
        requests = _requests(container)
        if container.restart_policy == "Always":  # a sidecar
            _add(sidecars, requests)
            requests = {}
        for name in {*requests, *sidecars}:
            most[name] = max(most[name], requests.get(name, Decimal()) + sidecars[name])
    _add(running, sidecars)
    total = {name: max(running[name], most[name]) for name in {*running, *most}}
    if getattr(pod.spec, "resources", None) is not None:
        total |= _requests(pod.spec)
    for name, amount in quantities(pod.spec.overhead).items():
        total[name] = total.get(name, Decimal()) + amount
    return {name: amount for name, amount in total.items() if amount}


def quantities(amounts: Mapping[str, Any] | None) -> dict[str, Decimal]:
    """Resource → amount, parsed from Kubernetes' notation."""
    return {name: parse_quantity(amount) for name, amount in (amounts or {}).items()}


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] += amount


def _requests(container: Any) -> dict[str, Decimal]:
    resources = container.resources
    if resources is None:
        return {}
    # the API server fills requests from limits; a pod template may lack that
    return {**quantities(resources.limits), **quantities(resources.requests)}


def node_usages(foreign_pods: Iterable[ForeignPod], pods: Iterable[LeasedPod]) -> dict[str, NodeUsage]:
    """Node → its usage."""
    usages: dict[str, NodeUsage] = defaultdict(NodeUsage)
    for foreign_pod in foreign_pods:
        amounts = usages[foreign_pod.node].amounts
        for name, amount in foreign_pod.amounts.items():
            if "/" in name or foreign_pod.is_resident:
                amounts[name] += amount
    for pod in pods:
        if pod.node is not None and not pod.is_over:
            usage = usages[pod.node]
            usage.leased |= pod.devices
            usage.ending |= pod.devices if pod.is_ending else frozenset()
    return dict(usages)


def without_usage(worker: Worker, usage: NodeUsage) -> Worker:
    """The worker without what is in use: foreign devices are not leasable, cores of resident pods are removed.

    Kubernetes does not report which devices a foreign pod has. The last slots without a lease stand for them.
    """
    device_amounts: defaultdict[str, int] = defaultdict(int)
    for name, amount in usage.amounts.items():
        device_amounts[_SAME_CHIPS.get(name, name)] += math.ceil(amount)
    devices: list[Device] = []
    for device in reversed(worker.devices):
        if device.kind == "cpu":
            devices.append(_remaining_cpu(device, usage.amounts))
            continue
        resource, problem = resource_of_slot(device.id), device.problem
        resource = _SAME_CHIPS.get(resource, resource)
        if device.id in usage.ending:
            problem = problem or "the pod that had it is still ending"
        elif device.leasable and device.id not in usage.leased and device_amounts.get(resource, 0) > 0:
            device_amounts[resource] -= 1
            problem = "a pod that was not placed here has it"
        is_taken = problem != device.problem
        devices.append(device.model_copy(update={"leasable": False, "problem": problem}) if is_taken else device)
    return worker.model_copy(update={"devices": tuple(reversed(devices))})


def _remaining_cpu(cpu: Device, amounts: Mapping[str, Decimal]) -> Device:
    cores = max(len(cpu.cores) - math.ceil(amounts.get("cpu", 0)), 0)
    memory = max((cpu.memory_bytes or 0) - math.ceil(amounts.get("memory", 0)), 0)
    return cpu.model_copy(update={"cores": cpu.cores[:cores], "memory_bytes": memory})
