"""The changes of a request that could make it start earlier, and the cost of each. Pure.

A cost of 0.1 stands for a run that takes 10 % longer:

======================================================= =============================================
fewer devices or cores, m in place of n                 n / m - 1
another device class                                    0.05, and by how much the task is slower there
... of another vendor                                   0.5 more: the code may not run there
a share of the device in place of all of it             1 / share - 1, and 0.1 for the neighbours
less memory of the device                               0.1, and 0.2 each time it is halved
memory without an upper limit                           0.05
fewer cores beside the devices                          0.05 each time they are halved, 0.1 for none
less host memory                                        0.1 each time it is halved, 0.2 for none
without the topology                                    0.1
without patience for better devices                     0.1
on spot workers too                                     0.2
without a label                                         0.2 each
without a condition on software or driver               0.3 each
a higher priority                                       0.25 a class: others wait in its place
======================================================= =============================================

The costs only order what is tried. They are judged, not measured.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hetero_airflow.errors import RequestError
from hetero_airflow.matching.feasibility import feasibility_of
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.device import Device, device_class
from hetero_airflow.model.request import MAX_ALTERNATIVES, Alternative, DeviceRequest, Priority
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.units import ByteRange, format_bytes

_GIB = 2**30

FieldChange = tuple[Mapping[str, object], float, str]
"""Fields of an alternative to set, the cost, and the description."""

AddedAlternative = tuple[Alternative, float, str]
"""An alternative to append to the request, the cost, and the description."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed request, the cost of the change, and its description for people."""

    request: DeviceRequest
    cost: float
    description: str


def possible_changes(snapshot: Snapshot, pending: PendingRequest) -> list[Change]:
    """The changes that some online worker could serve if it were idle, the cheapest first."""
    online = [worker for worker in snapshot.workers if worker.state is WorkerState.ONLINE]
    shapes = Shapes()
    workers = {shapes.entry(worker).shape: worker for worker in online}
    accelerators = [device for worker in workers.values() for device in worker.devices if device.kind != "cpu"]
    devices = {device_class(device): device for device in accelerators}
    speeds = snapshot.estimates.relative_speeds(pending.task, frozenset(devices))
    cheapest: dict[str, Change] = {}
    for change in _all_changes(pending.request, devices, speeds):
        earlier = cheapest.get(change.request.fingerprint)
        if change.request != pending.request and (earlier is None or change.cost < earlier.cost):
            cheapest[change.request.fingerprint] = change
    possible = (change for change in cheapest.values() if _is_servable(change.request, workers))
    return sorted(possible, key=lambda change: (change.cost, change.description))


def _is_servable(request: DeviceRequest, shapes: Collection[Shape]) -> bool:
    return any(
        feasibility_of(alternative, shape).is_servable for alternative in request.alternatives for shape in shapes
    )


def _all_changes(
    request: DeviceRequest, devices: Mapping[str, Device], speeds: Mapping[str, float]
) -> Iterator[Change]:
    for rank in range(request.priority.rank):
        priority = tuple(Priority)[rank]
        cost = 0.25 * (request.priority.rank - rank)
        yield Change(request.with_fields(priority=priority), cost, f"with the priority {priority}")
    if request.patience:
        yield Change(request.with_fields(patience=False), 0.1, "without patience for better devices")
    for number, alternative in enumerate(request.alternatives):
        where = f" in alternative {number + 1}" if len(request.alternatives) > 1 else ""
        for fields, cost, description in _relaxed(alternative, devices.values()):
            changed = _changed_alternative(alternative, fields)
            if changed is not None:
                alternatives = (*request.alternatives[:number], changed, *request.alternatives[number + 1 :])
                yield Change(request.with_fields(alternatives=alternatives), cost, description + where)
    if len(request.alternatives) < MAX_ALTERNATIVES:
        for added, cost, description in _added_alternatives(request.alternatives[0], devices, speeds):
            yield Change(request.with_fields(alternatives=(*request.alternatives, added)), cost, description)


def _changed_alternative(alternative: Alternative, fields: Mapping[str, object]) -> Alternative | None:
    try:
        return alternative.with_fields(**fields)
    except RequestError:
        return None


def _relaxed(alternative: Alternative, devices: Iterable[Device]) -> Iterator[FieldChange]:
    """The same devices, with fewer resources of the host and fewer conditions."""
    yield from _with_less_of_the_host(alternative)
    if alternative.topology is not None:
        yield {"topology": None}, 0.1, f"without the topology {alternative.topology}"
    if not alternative.spot:
        yield {"spot": True}, 0.2, "on spot workers too"
    if alternative.driver is not None:
        yield {"driver": None}, 0.3, f"without the condition driver{alternative.driver}"
    yield from _without_conditions("labels", alternative.labels, 0.2, "={}")
    yield from _without_conditions("runtime", alternative.runtime, 0.3, "{}")
    yield from _with_less_memory(alternative, devices)


def _with_less_of_the_host(alternative: Alternative) -> Iterator[FieldChange]:
    if alternative.cpus is not None:
        for halvings, cores in _halvings(alternative.cpus):
            yield {"cpus": cores}, 0.05 * halvings, f"with {cores} cores in place of {alternative.cpus}"
        yield {"cpus": None}, 0.05 * math.log2(alternative.cpus) + 0.1, "without cores of its own"
    if alternative.host_memory is not None:
        for halvings, size in list(_halvings(alternative.host_memory))[:4]:
            sizes = f"{format_bytes(size)} of host memory in place of {format_bytes(alternative.host_memory)}"
            yield {"host_memory": size}, 0.1 * halvings, f"with {sizes}"
        yield {"host_memory": None}, 0.6, "without host memory of its own"


def _without_conditions(
    field: str, conditions: Mapping[str, object], cost: float, value_format: str
) -> Iterator[FieldChange]:
    for name, value in conditions.items():
        kept_conditions = {key: condition for key, condition in conditions.items() if key != name}
        yield {field: kept_conditions}, cost, f"without the condition {name}{value_format.format(value)}"
    if len(conditions) > 1:
        yield {field: {}}, cost * len(conditions), f"without the conditions on {', '.join(conditions)}"


def _with_less_memory(alternative: Alternative, devices: Iterable[Device]) -> Iterator[FieldChange]:
    memory = alternative.memory
    if memory is None:
        return
    if memory.maximum is not None:
        lower_limit = None if memory.minimum is None else str(ByteRange(memory.minimum, None))
        yield {"memory": lower_limit}, 0.05, f"without the limit of {format_bytes(memory.maximum)} of memory"
    if memory.minimum is None:
        return
    sizes = {
        (device.memory_bytes or 0) * alternative.share_milli // 1000 // _GIB * _GIB
        for device in devices
        if device.kind != "cpu"
    }
    for size in sorted(size for size in sizes if 0 < size < memory.minimum):
        cost = 0.1 + 0.2 * math.log2(memory.minimum / size)
        description = f"with {format_bytes(size)} of memory in place of {format_bytes(memory.minimum)}"
        yield {"memory": str(ByteRange(size, memory.maximum))}, cost, description


def _halvings(amount: int) -> Iterator[tuple[int, int]]:
    """(number of halvings, the rest), down to 1.

    >>> list(_halvings(6))
    [(1, 3), (2, 1)]
    """
    halvings = 0
    while amount > 1:
        amount, halvings = amount // 2, halvings + 1
        yield halvings, amount


def _added_alternatives(
    base: Alternative, devices: Mapping[str, Device], speeds: Mapping[str, float]
) -> Iterator[AddedAlternative]:
    """Alternatives to append to the request: fewer of its devices, a share of one, other devices."""
    yield from _with_fewer_devices(base, 1.0, 0.0)
    if base.kind == "cpu":
        return
    named = {name for name, device in devices.items() if _names_device(base, device)}
    top_speed = max((speeds[name] for name in named), default=1.0) or 1.0
    for name in sorted(devices.keys() - named):
        device = devices[name]
        if base.kind not in (None, device.kind) or not speeds[name]:
            continue
        slowness = max(top_speed / speeds[name], 1.0)
        is_foreign = base.vendor not in (None, device.vendor)
        fields = {"vendor": device.vendor, "kind": device.kind, "model": device.model, "partition": None}
        if device.partition is not None:
            fields |= {"model": None, "partition": device.partition}
        added = _changed_alternative(base, {**fields, "driver": None if is_foreign else base.driver})
        if added is None:
            continue
        surcharge = 0.05 + 0.5 * is_foreign
        yield added, slowness - 1 + surcharge, _added_description(added, slowness)
        yield from _with_fewer_devices(added, slowness, surcharge)


def _names_device(base: Alternative, device: Device) -> bool:
    named = Alternative(vendor=base.vendor, kind=base.kind, model=base.model, partition=base.partition)
    alone = Worker(id=device.id, host=device.id, devices=(device,))
    return feasibility_of(named, Shapes().entry(alone).shape).is_possible


def _with_fewer_devices(base: Alternative, slowness: float, surcharge: float) -> Iterator[AddedAlternative]:
    """The alternative with fewer devices, or with a smaller share of one."""
    if base.share is None:
        counts = range(base.count - 1, 0, -1) if base.count <= 8 else [number for _, number in _halvings(base.count)]
        for number in counts:
            fewer, factor = _changed_alternative(base, {"count": number}), slowness * base.count / number
            if fewer is not None:
                yield fewer, factor - 1 + surcharge, _added_description(fewer, factor)
    if base.count == 1 and base.kind != "cpu":
        for part in (2, 4):
            share = _changed_alternative(base, {"share": (base.share or 1.0) / part})
            factor = slowness * part
            if share is not None:
                yield share, factor - 1 + surcharge + 0.1, _added_description(share, factor)


def _added_description(added: Alternative, slowness: float) -> str:
    number = f"{added.share:g} of a" if added.share is not None else f"{added.count} ×"
    longer = "" if slowness < 1.05 else f", about {slowness:.2g} times as long"
    return f"with {number} {added.device_text} as one more choice{longer}"
