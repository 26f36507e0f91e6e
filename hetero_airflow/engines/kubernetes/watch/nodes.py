"""Nodes as workers: one a node, with the devices that its plugins offer and what feature discovery says of them.

A node tells how many devices it has and not which, so that each gets a number; the device plugin gives a pod any of
them. Conditions and labels are those of k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from kubernetes.utils.quantity import parse_quantity  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.resources import RESOURCES
from hetero_airflow.engines.kubernetes.selectors import node_conditions
from hetero_airflow.engines.kubernetes.selectors.products import GOOGLE
from hetero_airflow.model.catalogue import MODELS, VENDORS
from hetero_airflow.model.device import Device
from hetero_airflow.model.topology import SITE_LABEL
from hetero_airflow.model.worker import MAX_DEVICES, Worker, WorkerState
from hetero_airflow.units import MAX_BYTES

ENGINE = "kubernetes"

_MIB, _GIB = 2**20, 2**30
_MAX_CORES = 4096
_MIG = "nvidia.com/mig-"
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_HARMLESS_TAINTS = frozenset({"nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"})


def worker_of(node: Any, site: str | None = None, resources: Mapping[str, str] | None = None) -> Worker:
    """The worker that a node is.

    A node that is not ready is LOST; one that is cordoned, or whose taints a device pod does not stand, offers its
    devices to no one, and its problem says why.

    :param node: a ``V1Node``
    :param site: of the cluster, where the node's own labels name none
    :param resources: rows beside those of `RESOURCES`, as ``[hetero] kubernetes_resources`` has them
    """
    labels = dict(node.metadata.labels or {})
    problem = _problem(node, {*RESOURCES.values(), *(resources or {}).values()})
    accelerators = islice(_accelerators(node, labels, resources or {}, problem), MAX_DEVICES - 1)
    if site is not None:
        labels.setdefault(SITE_LABEL, site)
    name = node.metadata.name
    return Worker(
        id=name if site is None else f"{site}/{name}",
        host=name,
        engine=ENGINE,
        devices=(*_cpu(node, labels, problem), *accelerators),
        runtime=_runtime(labels),
        labels=labels,
        problems=() if problem is None else (problem,),
        state=WorkerState.ONLINE if _is_ready(node) else WorkerState.LOST,
    )


def used_amounts(pods: Iterable[Any]) -> dict[str, dict[str, Decimal]]:
    """Node → resource → what its pods have been given, in cores, bytes and devices; ended pods have nothing.

    :param pods: ``V1Pod`` of all namespaces
    """
    used: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for pod in pods:
        node = pod.spec.node_name
        if node and getattr(pod.status, "phase", None) not in ("Succeeded", "Failed"):
            for name, amount in pod_amounts(pod).items():
                used[node][name] += amount
    return {node: dict(amounts) for node, amounts in used.items()}


def pod_amounts(pod: Any) -> dict[str, Decimal]:
    """What a pod takes of its node: as the scheduler counts, sidecars and the largest of what prepares it included."""
    running: dict[str, Decimal] = defaultdict(Decimal)
    for container in pod.spec.containers or ():
        _add(running, _requests(container))
    beside: dict[str, Decimal] = defaultdict(Decimal)
    most: dict[str, Decimal] = defaultdict(Decimal)
    for container in pod.spec.init_containers or ():
        asked = _requests(container)
        if container.restart_policy == "Always":  # a sidecar, which stays
            _add(beside, asked)
            asked = {}
        for name in {*asked, *beside}:
            most[name] = max(most[name], asked.get(name, Decimal()) + beside[name])
    _add(running, beside)
    total = {name: max(running[name], most[name]) for name in {*running, *most}}
    of_pod = getattr(pod.spec, "resources", None)
    total |= _requests(pod.spec) if of_pod is not None else {}
    for name, amount in _quantities(pod.spec.overhead).items():
        total[name] = total.get(name, Decimal()) + amount
    return {name: amount for name, amount in total.items() if amount}


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] += amount


def _requests(container: Any) -> dict[str, Decimal]:
    resources = container.resources
    if resources is None:
        return {}
    # the API server fills requests from limits; a pod template may lack that
    return {**_quantities(resources.limits), **_quantities(resources.requests)}


def _quantities(amounts: Mapping[str, Any] | None) -> dict[str, Decimal]:
    return {name: parse_quantity(amount) for name, amount in (amounts or {}).items()}


def _problem(node: Any, known: set[str]) -> str | None:
    states = {one.type: one for one in getattr(node.status, "conditions", None) or ()}
    ready = states.get("Ready")
    if ready is None or ready.status != "True":
        message = getattr(ready, "message", None) or getattr(ready, "reason", None) or "it has not said so"
        return f"the node is not ready: {message}"[:500]
    if node.spec.unschedulable:
        return "the node is cordoned"
    for name in _PRESSURES:
        if name in states and states[name].status == "True":
            return f"{name}: {states[name].message or states[name].reason or ''}"[:500]
    barring = [
        f"{taint.key}={taint.value or ''}:{taint.effect}"
        for taint in node.spec.taints or ()
        if taint.effect in ("NoSchedule", "NoExecute") and not (taint.effect == "NoSchedule" and taint.key in known)
        and not (taint.effect == "NoSchedule" and taint.key in _HARMLESS_TAINTS)
    ]  # fmt: skip
    return f"taints keep pods off the node: {', '.join(barring)}"[:500] if barring else None


def _is_ready(node: Any) -> bool:
    states = getattr(node.status, "conditions", None) or ()
    return any(one.type == "Ready" and one.status == "True" for one in states)


def _allocatable(node: Any) -> dict[str, Decimal]:
    return _quantities(getattr(node.status, "allocatable", None))


def _cpu(node: Any, labels: Mapping[str, str], problem: str | None) -> Iterator[Device]:
    amounts = _allocatable(node)
    cores = min(int(amounts.get("cpu", 0)), _MAX_CORES)
    if cores < 1:
        return
    yield Device(
        id="cpu",
        vendor={"Intel": "intel", "AMD": "amd", "ARM": "arm"}.get(
            labels.get(node_conditions.CPU_VENDOR, ""), "generic"
        ),
        kind="cpu",
        model=_word(labels.get("kubernetes.io/arch", "cpu")),
        index=0,
        memory_bytes=min(int(amounts.get("memory", 0)), MAX_BYTES),
        cores=tuple(range(cores)),
        leasable=problem is None,
        problem=problem,
    )


def _accelerators(
    node: Any, labels: Mapping[str, str], resources: Mapping[str, str], problem: str | None
) -> Iterator[Device]:
    capacity = _quantities(getattr(node.status, "capacity", None))
    allocatable = _allocatable(node)
    rows = {name: said for said, name in {**RESOURCES, **resources}.items()}
    for name in sorted({*capacity, *allocatable}):
        said = rows.get(name)
        partition = name.removeprefix(_MIG) if name.startswith(_MIG) else None
        if said is None and partition is None:
            continue
        vendor, kind = _vendor_kind(said)
        each, shared = _sharing(name, labels)
        healthy = int(allocatable.get(name, 0)) // each
        for index in range(min(max(healthy, int(capacity.get(name, 0)) // each), MAX_DEVICES)):
            fault = problem or shared or ("the device plugin reports it as unhealthy" if index >= healthy else None)
            yield Device(
                id=f"{name}/{index}",
                vendor=vendor,
                kind=kind,
                model=_model(vendor, said, labels),
                index=index,
                memory_bytes=_memory(vendor, partition, labels),
                partition=partition,
                leasable=fault is None,
                problem=fault,
                driver=_driver(vendor, labels),
            )


def _sharing(name: str, labels: Mapping[str, str]) -> tuple[int, str | None]:
    """How many of the resource make one device, and why such a device can't be had as a whole."""
    if name != RESOURCES["nvidia/gpu"]:
        return 1, None
    if labels.get(node_conditions.SHARING) in ("mps", "time-slicing"):
        words = f"shared by {labels[node_conditions.SHARING]}: it can't be had as a whole"
        return max(_number(labels.get(node_conditions.REPLICAS)), 1), words
    if node_conditions.INSTANCES in labels:
        return 1, 'a MIG instance that the plugin counts as a GPU: set its MIG strategy to "mixed"'
    return 1, None


def _vendor_kind(said: str | None) -> tuple[str, str]:
    if said is None or said.startswith("mig-"):
        return "nvidia", "gpu"
    first, _, second = said.partition("/")
    if second in MODELS:
        return first, MODELS[second][1]
    if second:
        return first, VENDORS.get(first, second) if second not in ("gpu", "npu", "tpu", "fpga") else second
    return (first, VENDORS[first]) if first in VENDORS else ("generic", first)


def _model(vendor: str, said: str | None, labels: Mapping[str, str]) -> str:
    label = {
        "nvidia": labels.get(node_conditions.PRODUCT, ""),
        "amd": labels.get(node_conditions.AMD_PRODUCT, ""),
        "ascend": labels.get(node_conditions.CHIP, ""),
        "google": labels.get(node_conditions.ACCELERATOR, ""),
    }.get(vendor, "")
    if vendor == "google":
        label = next((model for model, name in GOOGLE.items() if name == label), label)
    word = _word(label).removeprefix(f"{vendor}-").removesuffix("-shared").split("-mig-")[0]
    return word if label else _word((said or "").partition("/")[2] or vendor)


def _memory(vendor: str, partition: str | None, labels: Mapping[str, str]) -> int:
    """Of each device; 0 where the node does not say."""
    if vendor == "nvidia":
        label = f"{_MIG}{partition}.memory" if partition else node_conditions.MEMORY
        return _number(labels.get(label)) * _MIB
    if vendor == "amd":
        return _number(labels.get(node_conditions.AMD_MEMORY, "").removesuffix("G")) * _GIB
    return 0


def _driver(vendor: str, labels: Mapping[str, str]) -> str | None:
    if vendor == "nvidia":
        return _version(labels, node_conditions.DRIVER)
    return labels.get(node_conditions.AMD_DRIVER) if vendor == "amd" else None


def _runtime(labels: Mapping[str, str]) -> dict[str, str]:
    """What the nodes' drivers offer; the rest of the software is in the images."""
    cuda = _version(labels, node_conditions.CUDA)
    return {"cuda": cuda} if cuda else {}


def _version(labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
    parts = [text for key in keys if (text := labels.get(key))]
    return ".".join(parts) or None


def _number(text: str | None) -> int:
    return min(int(text), 2**30) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def _word(text: str) -> str:
    word = "".join(one if one.isalnum() or one in ".+-" else "-" for one in text.lower() if one.isascii())
    return word.strip("-.+")[:128] or "unknown"
