"""May this alternative run on this worker? What is true for as long as the worker stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero_airflow.matching.compatibility import version_obstacle
from hetero_airflow.matching.linked_devices import joined_sets, needed_level
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.device import Device, device_tokens, matches_model, model_tokens
from hetero_airflow.model.plan import TRANSIENT, Reason, ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.units import MILLI_PER_DEVICE, format_bytes

_STAGES = {code: stage for stage, code in enumerate(ReasonCode)}
"""The members of `ReasonCode` stand in the order in which they are checked: what fails late came close."""


class ResourceNeed(NamedTuple):
    """What an alternative takes of one device, in thousandths and bytes."""

    share_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an alternative does not fit; `closeness` orders misses, the greater the nearer."""

    reason: Reason
    closeness: tuple[bool, int, int]
    """Whether waiting can cure it, how late its reason is checked, how much of the amount was found."""


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether an alternative could run on an idle worker.

    Where `never` is None it could, once the worker is well: `suitable` are the positions of its
    devices that qualify, `usable` those that are also leasable; `unwell` says why not now.
    """

    never: Rejection | None
    unwell: Rejection | None = None
    suitable: tuple[int, ...] = ()
    usable: tuple[int, ...] = ()
    need_at: Mapping[int, ResourceNeed] = field(default_factory=dict)
    """What is taken of each of the usable devices, by position, where it is chosen."""
    asked: str = ""
    """The alternative in words."""

    @property
    def is_possible(self) -> bool:
        """Whether it could run there, even if not today."""
        return self.never is None

    @property
    def is_servable(self) -> bool:
        """Whether it could run there as the worker is now, if it were idle."""
        return self.never is None and self.unwell is None


def check_worker(alternative: Alternative, worker: Worker) -> tuple[bool, Reason | None]:
    """Whether the alternative could run on the worker if it were idle, and what is in the way.

    A transient reason (`Reason.is_transient`) is one that waiting can cure: the worker is lost,
    a device is unwell.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> from hetero_airflow.testing import a_worker
    >>> ok, reason = check_worker(DeviceRequest.parse("a100:4").alternatives[0], a_worker())
    >>> ok, str(reason)
    (False, 'count: asked 4 × nvidia/a100, found 2')
    """
    feasibility = feasibility_of(alternative, Shapes().entry(worker).shape)
    miss = feasibility.never or (
        lost_worker_rejection(alternative) if worker.state is WorkerState.LOST else feasibility.unwell
    )
    return miss is None, miss.reason if miss else None


def feasibility_of(alternative: Alternative, shape: Shape) -> Feasibility:
    """The feasibility on an alternative for all workers of a shape."""
    suitable, nearest = [], None
    for position, device in enumerate(shape.devices):
        miss = _device_rejection(alternative, device)
        if miss is None and (device.kind != "cpu" or position == shape.cpu):
            suitable.append(position)
        elif miss is not None and (nearest is None or miss.closeness > nearest.closeness):
            nearest = miss
    if not suitable:
        return Feasibility(
            nearest or make_rejection(ReasonCode.KIND, alternative.device_text, "a worker without devices")
        )
    never = (
        _share_rejection(alternative, shape)
        or _software_rejection(alternative, shape)
        or _count_rejection(alternative, shape, suitable)
        or _host_rejection(alternative, shape)
        or _topology_rejection(alternative, shape, suitable)
    )
    if never is not None:
        return Feasibility(never)
    usable = tuple(position for position in suitable if shape.devices[position].leasable)
    need_at = {position: device_need(alternative, shape.devices[position]) for position in usable}
    unwell = _health_rejection(alternative, shape, suitable, usable)
    return Feasibility(None, unwell, tuple(suitable), usable, need_at, str(alternative))


def device_need(alternative: Alternative, device: Device) -> ResourceNeed:
    """What the alternative takes of one of its devices: of a CPU cores and host memory, of others a share or all.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> from hetero_airflow.testing import a_cpu, a_device
    >>> device_need(DeviceRequest.parse("gpu:0.5").alternatives[0], a_device(memory="40GiB"))
    ResourceNeed(share_milli=500, memory_bytes=21474836480)
    >>> device_need(DeviceRequest.parse("cpu:4").alternatives[0], a_cpu())
    ResourceNeed(share_milli=4000, memory_bytes=0)
    """
    if device.kind == "cpu":
        return ResourceNeed(MILLI_PER_DEVICE * alternative.count, alternative.host_memory or 0)
    return ResourceNeed(alternative.share_milli, device.memory_bytes * alternative.share_milli // MILLI_PER_DEVICE)


def host_need(alternative: Alternative) -> ResourceNeed | None:
    """What an accelerator's alternative takes of the host's CPU beside it, if anything."""
    if alternative.kind == "cpu" or not (alternative.cpus or alternative.host_memory):
        return None
    return ResourceNeed(MILLI_PER_DEVICE * (alternative.cpus or 0), alternative.host_memory or 0)


def device_count(alternative: Alternative) -> int:
    """How many devices of a worker it takes: one CPU, however many of its cores."""
    return 1 if alternative.kind == "cpu" else alternative.count


def matches_label(asked: str, found: str | None) -> bool:
    """Whether a worker's label suits what was asked: the same text, or after a ``!`` none of those named.

    >>> matches_label("7", "7"), matches_label("!7,8", "8"), matches_label("!7", "9"), matches_label("!7", None)
    (True, False, True, True)
    """
    if not asked.startswith("!"):
        return found == asked
    return found not in [one.strip() for one in asked[1:].split(",")]


def lost_worker_rejection(alternative: Alternative) -> Rejection:
    """The miss of a worker that would do but has not been seen in time."""
    return make_rejection(ReasonCode.LOST, str(alternative), "a worker that has not been seen in time")


def make_rejection(code: ReasonCode, asked: str, found: str, amount: int = 0) -> Rejection:
    """A miss with its closeness; `amount` is how much of what was asked there is."""
    return Rejection(Reason(code, asked, found), (code in TRANSIENT, _STAGES[code], amount))


def _device_rejection(alternative: Alternative, device: Device) -> Rejection | None:
    """Why the device is not of the kind that was asked for; its health and leases are not looked at."""
    asked, found = alternative.device_text, str(device)
    if alternative.vendor not in (None, device.vendor) or (alternative.kind or device.kind) != device.kind:
        return make_rejection(ReasonCode.KIND, asked, found, amount=alternative.kind == device.kind)
    if device.kind == "cpu" and alternative.kind != "cpu":
        return make_rejection(ReasonCode.KIND, asked, "a CPU, which is asked for as cpu")
    if alternative.model is not None and not matches_model(alternative.model, device_tokens(device)):
        return make_rejection(ReasonCode.MODEL, asked, found, amount=_likeness(alternative.model, device.model))
    if alternative.partition != device.partition:
        return make_rejection(
            ReasonCode.PARTITION, asked if alternative.partition else f"{asked}, not a MIG instance", found
        )
    if alternative.memory is not None:
        size = device_need(alternative, device).memory_bytes
        if not alternative.memory.holds(size):
            share = "" if alternative.share is None else f" for a share of {alternative.share:g}"
            return make_rejection(
                ReasonCode.MEMORY, str(alternative.memory), f"{format_bytes(size)}{share}", amount=size
            )
    if alternative.driver is not None:
        obstacle = version_obstacle(device.driver, alternative.driver)
        if obstacle is not None:
            return make_rejection(ReasonCode.DRIVER, f"driver{alternative.driver}", obstacle)
    return None


def _likeness(asked: str, model: str) -> int:
    return len(model_tokens(asked) & model_tokens(model))


def _software_rejection(alternative: Alternative, shape: Shape) -> Rejection | None:
    for name, specifier in alternative.runtime.items():
        if shape.node_assigns_devices and name not in shape.runtime:
            continue  # it is in the image, or it is not: nothing is known of it here
        obstacle = version_obstacle(shape.runtime.get(name), specifier)
        if obstacle is not None:
            return make_rejection(ReasonCode.RUNTIME, f"{name}{specifier}", f"{name}: {obstacle}")
    for name, value in alternative.labels.items():
        if not matches_label(value, shape.labels.get(name)):
            found = f"{name}={shape.labels[name]}" if name in shape.labels else f"no label {name}"
            return make_rejection(ReasonCode.LABELS, f"{name}={value}", found)
    return None


def _share_rejection(alternative: Alternative, shape: Shape) -> Rejection | None:
    if not shape.node_assigns_devices or alternative.share is None or alternative.kind == "cpu":
        return None
    found = "a device plugin, which gives whole devices"
    return make_rejection(ReasonCode.PARTITION, f"a share of {alternative.share:g}", found)


def _count_rejection(alternative: Alternative, shape: Shape, suitable: list[int]) -> Rejection | None:
    if alternative.kind == "cpu":
        cores = len(shape.devices[suitable[0]].cores)
        return (
            None
            if cores >= alternative.count
            else make_rejection(ReasonCode.COUNT, f"{alternative.count} cores", str(cores))
        )
    if len(suitable) >= alternative.count:
        return None
    asked = f"{alternative.count} × {alternative.device_text}"
    return make_rejection(ReasonCode.COUNT, asked, str(len(suitable)), amount=len(suitable))


def _host_rejection(alternative: Alternative, shape: Shape) -> Rejection | None:
    cpu = shape.cpu_device
    cores, memory = (len(cpu.cores), cpu.memory_bytes) if cpu else (0, 0)
    if alternative.cpus is not None and alternative.cpus > cores:
        return make_rejection(ReasonCode.CPUS, f"{alternative.cpus} cores", str(cores), amount=cores)
    if alternative.host_memory is not None and alternative.host_memory > memory:
        asked = f"{format_bytes(alternative.host_memory)} of host memory"
        return make_rejection(ReasonCode.HOST_MEMORY, asked, format_bytes(memory), amount=memory)
    return None


def _topology_rejection(alternative: Alternative, shape: Shape, suitable: list[int]) -> Rejection | None:
    level = needed_level(alternative)
    if level is None or joined_sets(shape, suitable, level, alternative.count):
        return None
    most = max((len(joined) for joined in joined_sets(shape, suitable, level, 1)), default=1)
    return make_rejection(ReasonCode.TOPOLOGY, str(alternative), f"at most {most} joined by {level}", amount=most)


def _health_rejection(
    alternative: Alternative, shape: Shape, suitable: list[int], usable: tuple[int, ...]
) -> Rejection | None:
    if len(usable) < device_count(alternative):
        ill = next(shape.devices[p] for p in suitable if p not in usable)
        found = f"{len(usable)} well of {len(suitable)}: {ill.problem or 'not leasable'}"
        return make_rejection(ReasonCode.HEALTH, str(alternative), found, amount=len(usable))
    level = needed_level(alternative)
    if level is not None and not joined_sets(shape, usable, level, alternative.count):
        ill = next(shape.devices[p] for p in suitable if p not in usable)
        found = f"too few of the well ones joined by {level}: {ill.problem or 'not leasable'}"
        return make_rejection(ReasonCode.HEALTH, str(alternative), found, amount=len(usable))
    cpu = shape.cpu_device
    if host_need(alternative) is not None and cpu is not None and not cpu.leasable:
        return make_rejection(ReasonCode.HEALTH, str(alternative), f"its CPU: {cpu.problem or 'not leasable'}")
    return None
