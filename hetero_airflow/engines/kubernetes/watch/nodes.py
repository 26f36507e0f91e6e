"""Nodes as workers: each node with the devices that its device plugins offer and that feature discovery labels.

A node reports how many devices it has, not which. So each device gets a number, and the device plugin gives a pod any
of them. Conditions and labels are those of k8s.io/api/core/v1/types.go.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from hetero_airflow.engines.kubernetes.claims.claim_template import UNREAD_KEY
from hetero_airflow.engines.kubernetes.resources import DRA_DRIVERS, RESOURCES
from hetero_airflow.engines.kubernetes.selectors import node_conditions
from hetero_airflow.engines.kubernetes.watch.advertised import Advertised, Node, device_word, read_advertised
from hetero_airflow.engines.kubernetes.watch.node_usage import quantities
from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.names import architecture_of
from hetero_airflow.model.topology import SITE_LABEL
from hetero_airflow.model.worker import MAX_DEVICES, MAX_PROBLEMS, Worker, WorkerState
from hetero_airflow.units import MAX_BYTES

ENGINE = "kubernetes"

_MAX_CORES = 4096
_MAX_VERSION = 64
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_MAYBE_SAME = (
    "a device plugin of its vendor offers a resource that is not understood, which may be the same device: use either "
    "the plugin or DRA on the node"
)
_HARMLESS_TAINTS = frozenset({"nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"})


def worker_of(node: Any, site: str | None = None, resources: Mapping[str, str] | None = None) -> Worker:
    """The worker for a node.

    A node that is not ready is LOST. The devices of a cordoned node, or of a node with a taint that device pods don't
    tolerate, are not leasable; the worker's first problem says why. Its other problems are resources that are not
    understood, each with the vendor before it.

    :param node: a ``V1Node``
    :param site: the cluster's name, used if the node's labels name no site
    :param resources: rows in addition to `RESOURCES`, from ``[hetero] kubernetes_resources``
    """
    labels = dict(node.metadata.labels or {})
    problem = _problem(node, {*RESOURCES.values(), *(resources or {}).values()})
    advertised = Node(labels, dict(node.metadata.annotations or {}), _capacity(node), _allocatable(node))
    offers, lines = read_advertised(advertised, resources or {})
    accelerators = islice(_accelerators(offers, labels, problem), MAX_DEVICES - 1)
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
        problems=tuple([*([problem] if problem else []), *lines][:MAX_PROBLEMS]),
        state=WorkerState.ONLINE if _is_ready(node) else WorkerState.LOST,
    )


def with_slice_devices(worker: Worker, devices: Sequence[Device]) -> Worker:
    """The worker with the devices of its node's slices, except those of a vendor whose device plugin offers devices.

    Devices of a vendor whose device plugin offers something that is not understood may be the same: none is leased.
    """
    plugged = {device.vendor for device in worker.devices if device.kind != "cpu"}
    added = [device for device in devices if device.vendor not in plugged]
    if not added:
        return worker
    cause = worker.cpu.problem if worker.cpu is not None else next(iter(worker.problems), None)
    faults = {device.id: cause for device in added if cause} or dict(_same_devices(added, worker.problems))
    added = [
        device.model_copy(update={"leasable": False, "problem": faults[device.id]}) if device.id in faults else device
        for device in added
    ]
    room = MAX_DEVICES - len(worker.devices)
    problems = (*worker.problems, *dict.fromkeys(_unread_lines(devices, plugged)))[:MAX_PROBLEMS]
    return worker.model_copy(update={"devices": (*worker.devices, *added[:room]), "problems": problems})


def _same_devices(devices: Sequence[Device], problems: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(Id, why it is not offered) of the devices of slices that may be the same as what something else offers."""
    unclear = {line.partition(":")[0] for line in problems}
    sources: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for device in devices:
        sources[device.vendor, device.kind].add(device.id.partition("/")[0])
    main = {row.domain for row in DRA_DRIVERS.values()}
    for device in devices:
        others = sources[device.vendor, device.kind] - {device.id.partition("/")[0]}
        if device.vendor in unclear:
            yield device.id, _MAYBE_SAME
        elif others and device.id.partition("/")[0] not in main:
            yield device.id, f"the DRA driver {min(others)} offers devices of the same kind, which may be the same ones"


def _unread_lines(devices: Sequence[Device], plugged: Collection[str]) -> Iterator[str]:
    """A problem line for each driver and cause why its devices are not understood."""
    for device in devices:
        if device.details.get(UNREAD_KEY) and device.vendor not in plugged:
            driver = device.id.partition("/")[0]
            yield f"{device.vendor}: the node has devices of {driver} that are not offered: {device.problem}"[:500]


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


def _capacity(node: Any) -> dict[str, Decimal]:
    return quantities(getattr(node.status, "capacity", None))


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
        model=device_word(labels.get(node_conditions.ARCHITECTURE, "cpu")),
        index=0,
        memory_bytes=min(int(amounts.get("memory", 0)), MAX_BYTES),
        cores=tuple(range(cores)),
        capability=architecture_of(labels.get(node_conditions.ARCHITECTURE, "")),
        leasable=problem is None,
        problem=problem,
    )


def _accelerators(offers: Sequence[Advertised], labels: Mapping[str, str], problem: str | None) -> Iterator[Device]:
    for offer in offers:
        for index in range(min(offer.count, MAX_DEVICES)):
            unhealthy = "the device plugin reports it as unhealthy" if index >= offer.healthy else None
            fault = problem or offer.problem or unhealthy
            yield Device(
                id=f"{offer.resource}/{index}",
                vendor=offer.vendor,
                kind=offer.kind,
                model=offer.model,
                index=index,
                memory_bytes=offer.memory_bytes,
                partition=offer.partition,
                leasable=fault is None,
                problem=fault,
                driver=_driver(offer.vendor, labels),
            )


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
