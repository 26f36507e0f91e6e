"""Nodes as workers: each node with the devices that its device plugins offer and that feature discovery labels.

A node reports how many devices it has, not which. So each device gets a number, and the device plugin gives a pod any
of them. Conditions and labels are those of k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from hetero_airflow.engines.kubernetes.resources import DOMAINS, RESOURCES
from hetero_airflow.engines.kubernetes.selectors import node_conditions
from hetero_airflow.engines.kubernetes.selectors.products import GOOGLE
from hetero_airflow.engines.kubernetes.watch.node_usage import quantities
from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.names import MODELS, VENDORS
from hetero_airflow.model.topology import SITE_LABEL
from hetero_airflow.model.worker import MAX_DEVICES, Worker, WorkerState
from hetero_airflow.units import MAX_BYTES

ENGINE = "kubernetes"

_MIB, _GIB = 2**20, 2**30
_MAX_CORES = 4096
_MAX_VERSION = 64
_MIG = "nvidia.com/mig-"
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_HARMLESS_TAINTS = frozenset({"nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"})


def worker_of(node: Any, site: str | None = None, resources: Mapping[str, str] | None = None) -> Worker:
    """The worker for a node.

    A node that is not ready is LOST. The devices of a cordoned node, or of a node with a taint that device pods don't
    tolerate, are not leasable; the worker's problem says why.

    :param node: a ``V1Node``
    :param site: the cluster's name, used if the node's labels name no site
    :param resources: rows in addition to `RESOURCES`, from ``[hetero] kubernetes_resources``
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


def with_slice_devices(worker: Worker, devices: Sequence[Device]) -> Worker:
    """The worker with the devices of its node's slices, except those of a vendor whose device plugin offers devices."""
    plugged = {device.vendor for device in worker.devices if device.kind != "cpu"}
    added = [device for device in devices if device.vendor not in plugged]
    if not added:
        return worker
    if worker.problems:
        added = [device.model_copy(update={"leasable": False, "problem": worker.problems[0]}) for device in added]
    room = MAX_DEVICES - len(worker.devices)
    return worker.model_copy(update={"devices": (*worker.devices, *added[:room])})


def _problem(node: Any, tolerated: set[str]) -> str | None:
    states = {state.type: state for state in getattr(node.status, "conditions", None) or ()}
    ready = states.get("Ready")
    if ready is None or ready.status != "True":
        message = getattr(ready, "message", None) or getattr(ready, "reason", None) or "it reports no reason"
        return f"the node is not ready: {message}"[:500]
    if node.spec.unschedulable:
        return "the node is cordoned"
    for name in _PRESSURES:
        if name in states and states[name].status == "True":
            return f"{name}: {states[name].message or states[name].reason or ''}"[:500]
    blocking = [
        f"{taint.key}={taint.value or ''}:{taint.effect}"
        for taint in node.spec.taints or ()
        if taint.effect in ("NoSchedule", "NoExecute") and not (taint.effect == "NoSchedule" and taint.key in tolerated)
        and not (taint.effect == "NoSchedule" and taint.key in _HARMLESS_TAINTS)
    ]  # fmt: skip
    return f"taints keep pods off the node: {', '.join(blocking)}"[:500] if blocking else None


def _is_ready(node: Any) -> bool:
    states = getattr(node.status, "conditions", None) or ()
    return any(state.type == "Ready" and state.status == "True" for state in states)


def _allocatable(node: Any) -> dict[str, Decimal]:
    return quantities(getattr(node.status, "allocatable", None))


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
        model=device_word(labels.get("kubernetes.io/arch", "cpu")),
        index=0,
        memory_bytes=min(int(amounts.get("memory", 0)), MAX_BYTES),
        cores=tuple(range(cores)),
        leasable=problem is None,
        problem=problem,
    )


def _accelerators(
    node: Any, labels: Mapping[str, str], resources: Mapping[str, str], problem: str | None
) -> Iterator[Device]:
    capacity = quantities(getattr(node.status, "capacity", None))
    allocatable = _allocatable(node)
    rows = {name: device_text for device_text, name in {**RESOURCES, **resources}.items()}
    for name in sorted({*capacity, *allocatable}):
        device_text = rows.get(name)
        partition = name.removeprefix(_MIG) if name.startswith(_MIG) else None
        if device_text is None and partition is None:
            continue
        vendor, kind = _vendor_kind(device_text, name)
        units_per_device, shared = _sharing(name, labels)
        healthy = int(allocatable.get(name, 0)) // units_per_device
        for index in range(min(max(healthy, int(capacity.get(name, 0)) // units_per_device), MAX_DEVICES)):
            fault = problem or shared or ("the device plugin reports it as unhealthy" if index >= healthy else None)
            yield Device(
                id=f"{name}/{index}",
                vendor=vendor,
                kind=kind,
                model=_model(vendor, device_text, labels),
                index=index,
                memory_bytes=_memory(vendor, partition, labels),
                partition=partition,
                leasable=fault is None,
                problem=fault,
                driver=_driver(vendor, labels),
            )


def _sharing(name: str, labels: Mapping[str, str]) -> tuple[int, str | None]:
    """How many units of the resource make one device, and why such a device can't be leased as a whole."""
    if name != RESOURCES["nvidia/gpu"]:
        return 1, None
    if labels.get(node_conditions.SHARING) in ("mps", "time-slicing"):
        problem = f"shared by {labels[node_conditions.SHARING]}: it can't be had as a whole"
        return max(_number(labels.get(node_conditions.REPLICAS)), 1), problem
    if node_conditions.INSTANCES in labels:
        return 1, 'a MIG instance that the plugin counts as a GPU: set its MIG strategy to "mixed"'
    return 1, None


def _vendor_kind(device_text: str | None, resource: str) -> tuple[str, str]:
    if device_text is None or device_text.startswith("mig-"):
        return "nvidia", "gpu"
    first, _, second = device_text.partition("/")
    if second in MODELS:
        return first, MODELS[second][1]
    if second:
        return first, VENDORS.get(first, second) if second not in ("gpu", "npu", "tpu", "fpga") else second
    if first in VENDORS:
        return first, VENDORS[first]
    return DOMAINS.get(resource.partition("/")[0], "generic"), first


def _model(vendor: str, device_text: str | None, labels: Mapping[str, str]) -> str:
    label = {
        "nvidia": labels.get(node_conditions.PRODUCT, ""),
        "amd": labels.get(node_conditions.AMD_PRODUCT, ""),
        "ascend": labels.get(node_conditions.CHIP, ""),
        "google": labels.get(node_conditions.ACCELERATOR, ""),
    }.get(vendor, "")
    if vendor == "google":
        label = next((model for model, name in GOOGLE.items() if name == label), label)
    word = model_word(device_word(label).removesuffix("-shared").split("-mig-")[0], vendor)
    return word if label else device_word((device_text or "").partition("/")[2] or vendor)


def _memory(vendor: str, partition: str | None, labels: Mapping[str, str]) -> int:
    """Bytes of each device; 0 if the node does not report it."""
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
    """The software that the node's drivers provide. All other software is in the images."""
    cuda = _version(labels, node_conditions.CUDA)
    return {"cuda": cuda} if cuda else {}


def _version(labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
    version = ".".join(text for key in keys if (text := labels.get(key)))
    return version if 0 < len(version) <= _MAX_VERSION else None  # a longer one is no version


def _number(text: str | None) -> int:
    return min(int(text), 2**30) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def device_word(text: str) -> str:
    """The text as a vendor, kind or model: lower case, with dashes between its words.

    >>> device_word("NVIDIA A100-SXM4-80GB")
    'nvidia-a100-sxm4-80gb'
    """
    word = "".join(c if c.isalnum() or c in ".+-" else "-" for c in text.lower() if c.isascii())
    return word.strip("-.+")[:128] or "unknown"


def model_word(text: str, vendor: str) -> str:
    """The text as a model, without the vendor's name before it.

    >>> model_word("NVIDIA (R) A100", "nvidia"), model_word("NVIDIA", "nvidia")
    ('r--a100', 'nvidia')
    """
    return device_word(text).removeprefix(f"{vendor}-").strip("-.+") or vendor
