"""Feasibility: whether an alternative can run on a worker. The answer holds until the worker itself changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from hetero_airflow.errors import shorten
from hetero_airflow.matching.linked_devices import joined_sets, needed_level
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.device import Device, device_tokens
from hetero_airflow.model.devices.names import is_display_only, matches_model, model_tokens
from hetero_airflow.model.plan import TRANSIENT, Reason, ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import SPOT_LABEL, Worker, WorkerState, is_spot_worker
from hetero_airflow.units import MILLI_PER_DEVICE, format_bytes

_STAGES = {code: stage for stage, code in enumerate(ReasonCode)}
"""The members of `ReasonCode` stand in the order of the checks. A worker that fails late is close to a fit."""

INTEGRATED_GPU = "an integrated GPU, which only a request that names it gets"

MAX_VERSION = 128
"""A longer text is no version. The limit keeps hostile texts away from the parser."""


class ResourceNeed(NamedTuple):
    """The amount of one device that an alternative takes, in thousandths and bytes."""

    share_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an alternative does not fit. `closeness` orders rejections; a greater value is closer to a fit."""

    reason: Reason
    closeness: tuple[bool, int, int]
    """Whether the reason is transient, the stage of its check, and how much of the amount was found."""


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether an alternative can run on an idle worker of a shape."""

    permanent_rejection: Rejection | None
    """None: it can, if the worker's devices are healthy."""
    health_rejection: Rejection | None = None
    """Why it can't run now; None if enough devices are healthy."""
    suitable: tuple[int, ...] = ()
    """Positions of the devices that meet all conditions."""
    usable: tuple[int, ...] = ()
    """Those of them that are leasable."""
    needs: Mapping[int, ResourceNeed] = field(default_factory=dict)
    """Position of each usable device → the amount that is taken of it, if it is chosen."""
    asked: str = ""
    """The alternative as text."""

    @property
    def is_possible(self) -> bool:
        """Whether it can ever run there."""
        return self.permanent_rejection is None

    @property
    def is_servable(self) -> bool:
        """Whether it can run there with the devices that are healthy now, if the worker is idle."""
        return self.permanent_rejection is None and self.health_rejection is None


def check_worker(alternative: Alternative, worker: Worker) -> tuple[bool, Reason | None]:
    """Whether the alternative can run on the worker if it is idle, and the reason if it can't.

    A transient reason (`Reason.is_transient`) can end by itself: the worker is lost, a device is not healthy.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> from hetero_airflow.testing import a_worker
    >>> ok, reason = check_worker(DeviceRequest.parse("a100:4").alternatives[0], a_worker())
    >>> ok, str(reason)
    (False, 'count: asked 4 × nvidia/a100, found 2')
    """
    feasibility = feasibility_of(alternative, Shapes().entry(worker).shape)
    lost = lost_worker_rejection(alternative) if worker.state is WorkerState.LOST else None
    rejection = feasibility.permanent_rejection or lost or feasibility.health_rejection
    return rejection is None, rejection.reason if rejection else None


def feasibility_of(alternative: Alternative, shape: Shape) -> Feasibility:
    """Whether the alternative can run on the workers of a shape."""
    suitable, nearest = [], None
    for position, device in enumerate(shape.devices):
        rejection = _device_rejection(alternative, device) or _integrated_rejection(alternative, shape, position)
        if rejection is None and (device.kind != "cpu" or position == shape.cpu):
            suitable.append(position)
        elif rejection is not None and (nearest is None or rejection.closeness > nearest.closeness):
            nearest = rejection
    if not suitable:
        no_devices = make_rejection(ReasonCode.KIND, alternative.device_text, "a worker without devices")
        return Feasibility(nearest or no_devices)
    permanent = (
        _share_rejection(alternative, shape)
        or _software_rejection(alternative, shape)
        or _count_rejection(alternative, shape, suitable)
        or _host_rejection(alternative, shape)
        or _topology_rejection(alternative, shape, suitable)
    )
    if permanent is not None:
        return Feasibility(permanent)
    usable = tuple(position for position in suitable if shape.devices[position].leasable)
    needs = {position: device_need(alternative, shape.devices[position]) for position in usable}
    health = _health_rejection(alternative, shape, suitable, usable)
    return Feasibility(None, health, tuple(suitable), usable, needs, str(alternative))


def device_need(alternative: Alternative, device: Device) -> ResourceNeed:
    """The amount of one device that the alternative takes: cores and host memory of a CPU, a share or all of others.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> from hetero_airflow.testing import a_cpu, a_device
    >>> device_need(DeviceRequest.parse("gpu:0.5").alternatives[0], a_device(memory="40GiB"))
    ResourceNeed(share_milli=500, memory_bytes=21474836480)
    >>> device_need(DeviceRequest.parse("cpu:4").alternatives[0], a_cpu())
    ResourceNeed(share_milli=4000, memory_bytes=0)
    """
    if device.kind == "cpu":
        return ResourceNeed(MILLI_PER_DEVICE * alternative.count, alternative.host_memory or 0)
    size = device.memory_bytes or 0  # of unknown memory, only the share counts
    return ResourceNeed(alternative.share_milli, size * alternative.share_milli // MILLI_PER_DEVICE)


def host_need(alternative: Alternative) -> ResourceNeed | None:
    """The amount of the host's CPU that an accelerator's alternative takes; None if it takes nothing of it."""
    if alternative.kind == "cpu" or not (alternative.cpus or alternative.host_memory):
        return None
    return ResourceNeed(MILLI_PER_DEVICE * (alternative.cpus or 0), alternative.host_memory or 0)


def device_count(alternative: Alternative) -> int:
    """How many devices of a worker it takes. A CPU is one device, however many cores it takes."""
    return 1 if alternative.kind == "cpu" else alternative.count


def matches_label(requirement: str, value: str | None) -> bool:
    """Whether a worker's label has the value that was asked for, or after a ``!`` none of the values.

    >>> matches_label("7", "7"), matches_label("!7,8", "8"), matches_label("!7", "9"), matches_label("!7", None)
    (True, False, True, True)
    """
    if not requirement.startswith("!"):
        return value == requirement
    return value not in [excluded.strip() for excluded in requirement[1:].split(",")]


@lru_cache(maxsize=4096)
def version_obstacle(installed: str | None, specifier: str) -> str | None:
    """What was found, as text, if the installed version does not match the specifier; None if it does.

    Pre-releases count as versions: a release candidate of a driver is that driver.

    >>> version_obstacle("550.54.15", ">=535")
    >>> version_obstacle("12.2", ">=12.4,!=12.6.*")
    '12.2'
    >>> version_obstacle(None, ">=535"), version_obstacle("r550 (beta)", ">=535")
    ('no known version', "'r550 (beta)', which is no version")
    """
    if installed is None:
        return "no known version"
    try:
        if len(installed) > MAX_VERSION:
            raise InvalidVersion
        version = Version(installed)
    except InvalidVersion:
        return f"{shorten(installed, 40)}, which is no version"
    return None if SpecifierSet(specifier).contains(version, prereleases=True) else installed


def lost_worker_rejection(alternative: Alternative) -> Rejection:
    """The rejection of a worker that would fit but whose heartbeat stopped."""
    return make_rejection(ReasonCode.LOST, str(alternative), "a worker whose heartbeat stopped")


def make_rejection(code: ReasonCode, asked: str, found: str, amount: int = 0) -> Rejection:
    """A rejection with its closeness; `amount` is how much was found of what was asked."""
    return Rejection(Reason(code, asked, found), (code in TRANSIENT, _STAGES[code], amount))


def _device_rejection(alternative: Alternative, device: Device) -> Rejection | None:
    """Why the device does not meet the conditions; its health and its leases do not count here."""
    asked, found = alternative.device_text, str(device)
    if alternative.vendor not in (None, device.vendor) or (alternative.kind or device.kind) != device.kind:
        return make_rejection(ReasonCode.KIND, asked, found, amount=alternative.kind == device.kind)
    if device.kind == "cpu" and alternative.kind != "cpu":
        return make_rejection(ReasonCode.KIND, asked, "a CPU, which is requested as cpu", amount=-1)
    if alternative.model is None and is_display_only(device.model):
        return make_rejection(ReasonCode.MODEL, asked, f"{found}, which only shows pictures")
    if alternative.model is not None and not matches_model(alternative.model, device_tokens(device)):
        common = model_tokens(alternative.model) & model_tokens(device.model)
        return make_rejection(ReasonCode.MODEL, asked, found, amount=len(common))
    if alternative.partition != device.partition:
        part = "a MIG instance" if device.vendor == "nvidia" else "a partition"
        whole = asked if alternative.partition else f"{asked}, not {part}"
        return make_rejection(ReasonCode.PARTITION, whole, found)
    return _memory_rejection(alternative, device) or _driver_rejection(alternative, device)


def _integrated_rejection(alternative: Alternative, shape: Shape, position: int) -> Rejection | None:
    """Why the request does not get an integrated GPU beside a card: its model must name that GPU, and not the card."""
    if position not in shape.integrated or _names_no_card(alternative, shape):
        return None
    found = f"{shape.devices[position]}, {INTEGRATED_GPU}"
    return make_rejection(ReasonCode.MODEL, alternative.device_text, found)


def _names_no_card(alternative: Alternative, shape: Shape) -> bool:
    cards = (device for p, device in enumerate(shape.devices) if device.kind == "gpu" and p not in shape.integrated)
    model = alternative.model
    return model is not None and not any(matches_model(model, device_tokens(card)) for card in cards)


def _memory_rejection(alternative: Alternative, device: Device) -> Rejection | None:
    if alternative.memory is None:
        return None
    if device.memory_bytes is None:
        return make_rejection(ReasonCode.MEMORY, str(alternative.memory), "unknown")
    size = device_need(alternative, device).memory_bytes
    if alternative.memory.holds(size):
        return None
    share = "" if alternative.share is None else f" for a share of {alternative.share:g}"
    return make_rejection(ReasonCode.MEMORY, str(alternative.memory), f"{format_bytes(size)}{share}", amount=size)


def _driver_rejection(alternative: Alternative, device: Device) -> Rejection | None:
    obstacle = None if alternative.driver is None else version_obstacle(device.driver, alternative.driver)
    return None if obstacle is None else make_rejection(ReasonCode.DRIVER, f"driver{alternative.driver}", obstacle)


def _software_rejection(alternative: Alternative, shape: Shape) -> Rejection | None:
    for name, specifier in alternative.runtime.items():
        if shape.node_assigns_devices and name not in shape.runtime:
            continue  # the container image may have it; nothing is known of it here
        obstacle = version_obstacle(shape.runtime.get(name), specifier)
        if obstacle is not None:
            return make_rejection(ReasonCode.RUNTIME, f"{name}{specifier}", f"{name}: {obstacle}")
    for name, value in alternative.labels.items():
        if not matches_label(value, shape.labels.get(name)):
            found = f"{name}={shape.labels[name]}" if name in shape.labels else f"no label {name}"
            return make_rejection(ReasonCode.LABELS, f"{name}={value}", found)
    architecture = shape.cpu_device.capability if shape.cpu_device else None
    if alternative.architecture not in (None, architecture):
        asked = f"architecture={alternative.architecture}"
        return make_rejection(ReasonCode.RUNTIME, asked, f"architecture: {architecture or 'unknown'}")
    if not alternative.spot and is_spot_worker(shape.labels):
        return make_rejection(ReasonCode.LABELS, "spot=False", f"{SPOT_LABEL}={shape.labels[SPOT_LABEL]}")
    return None


def _share_rejection(alternative: Alternative, shape: Shape) -> Rejection | None:
    if not shape.node_assigns_devices or alternative.share is None or alternative.kind == "cpu":
        return None
    found = "a device plugin, which gives whole devices"
    return make_rejection(ReasonCode.PARTITION, f"a share of {alternative.share:g}", found)


def _count_rejection(alternative: Alternative, shape: Shape, suitable: Sequence[int]) -> Rejection | None:
    if alternative.kind == "cpu":
        cores = len(shape.devices[suitable[0]].cores)
        if cores >= alternative.count:
            return None
        return make_rejection(ReasonCode.COUNT, f"{alternative.count} cores", str(cores))
    if len(suitable) >= alternative.count:
        return None
    asked, found = f"{alternative.count} × {alternative.device_text}", str(len(suitable))
    left_out = [
        p for p in shape.integrated if p not in suitable and not _device_rejection(alternative, shape.devices[p])
    ]
    if left_out:
        found += f", and {shape.devices[min(left_out)]}, {INTEGRATED_GPU}"
    return make_rejection(ReasonCode.COUNT, asked, found, amount=len(suitable))


def _host_rejection(alternative: Alternative, shape: Shape) -> Rejection | None:
    cpu = shape.cpu_device
    cores, memory = (len(cpu.cores), cpu.memory_bytes or 0) if cpu else (0, 0)
    if alternative.cpus is not None and alternative.cpus > cores:
        return make_rejection(ReasonCode.CPUS, f"{alternative.cpus} cores", str(cores), amount=cores)
    if alternative.host_memory is not None and alternative.host_memory > memory:
        asked = f"{format_bytes(alternative.host_memory)} of host memory"
        found = "unknown" if cpu is None or cpu.memory_bytes is None else format_bytes(memory)
        return make_rejection(ReasonCode.HOST_MEMORY, asked, found, amount=memory)
    return None


def _topology_rejection(alternative: Alternative, shape: Shape, suitable: Sequence[int]) -> Rejection | None:
    level = needed_level(alternative)
    if level is None or joined_sets(shape, suitable, level, alternative.count):
        return None
    most = max((len(joined) for joined in joined_sets(shape, suitable, level, 1)), default=1)
    return make_rejection(ReasonCode.TOPOLOGY, str(alternative), f"at most {most} joined by {level}", amount=most)


def _health_rejection(
    alternative: Alternative, shape: Shape, suitable: Sequence[int], usable: Sequence[int]
) -> Rejection | None:
    level, cpu, found = needed_level(alternative), shape.cpu_device, None
    if len(usable) < device_count(alternative):
        found = f"{len(usable)} of {len(suitable)} healthy: {_first_problem(shape, suitable, usable)}"
    elif level is not None and not joined_sets(shape, usable, level, alternative.count):
        found = f"too few healthy devices joined by {level}: {_first_problem(shape, suitable, usable)}"
    if found is not None:
        return make_rejection(ReasonCode.HEALTH, str(alternative), found, amount=len(usable))
    if host_need(alternative) is not None and cpu is not None and not cpu.leasable:
        return make_rejection(ReasonCode.HEALTH, str(alternative), f"its CPU: {cpu.problem or 'not leasable'}")
    return None


def _first_problem(shape: Shape, suitable: Sequence[int], usable: Sequence[int]) -> str:
    return next(shape.devices[p].problem for p in suitable if p not in usable) or "not leasable"
