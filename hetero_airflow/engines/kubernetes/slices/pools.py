"""The devices of nodes from the slices of pools, as Kubernetes' scheduler counts them. Pure.

Of a pool only the slices of its newest generation count, and only when all of them are there (KEP-4381). A device
without an attribute that tells it apart from the others of its pool is not offered, because a claim could not name it:
so the devices of a lease are those that the cluster allocates.

Devices of one GPU may exclude each other: the whole one and its partitions take from the same counters (KEP-4815). Only
devices that fit beside each other are offered, the largest first. So a GPU is offered as a whole while no part of it is
in use, and then the partitions that are left.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero_airflow.engines.kubernetes.claims.claim_template import CLASS_KEY, PIN_KEY, PIN_VALUE_KEY, UNREAD_KEY
from hetero_airflow.engines.kubernetes.selectors.products import GOOGLE
from hetero_airflow.engines.kubernetes.slices.allocations import ClaimAllocation, device_id
from hetero_airflow.engines.kubernetes.slices.drivers import (
    MODEL_NAMES,
    PINS,
    attribute_fault,
    device_class,
    driver_kind,
    expected_names,
    health_fault,
    profile_of,
)
from hetero_airflow.engines.kubernetes.slices.resource_slices import Counters, ResourceSlice, SliceDevice
from hetero_airflow.engines.kubernetes.slices.same_devices import hidden_twins, same_device_faults
from hetero_airflow.engines.kubernetes.watch.advertised import device_word, model_word
from hetero_airflow.model.device import Device

_MAX_ID = 256

log = logging.getLogger(__name__)


class PoolUse(NamedTuple):
    """What is known about the use of a pool's devices. Equal uses give equal devices."""

    holders: Mapping[str, str] = {}
    """Device id → what has it, if that is no lease of ours that knows so."""
    leased: frozenset[str] = frozenset()
    """Ids of the devices that pods of our leases have."""
    problem: str = ""
    """Why the use of all devices is unknown; empty if it is known."""


NO_USE = PoolUse()


@dataclass(frozen=True, slots=True)
class _ReadPool:
    slices: Sequence[ResourceSlice]
    use: PoolUse
    classes: Collection[str] | None
    devices: Mapping[str, tuple[Device, ...]]


@dataclass(slots=True)
class Pools:
    """The pools of a cluster. Pools that have not changed are not read again."""

    _read_pools: dict[tuple[str, str], _ReadPool] = field(default_factory=dict)
    _unreadable: set[tuple[str, str]] = field(default_factory=set)
    """The pools that the log has named."""

    def by_node(
        self,
        slices: Iterable[ResourceSlice],
        uses: Mapping[tuple[str, str], PoolUse],
        classes: Collection[str] | None,
        problem: str = "",
    ) -> dict[str, tuple[Device, ...]]:
        """Node → its devices.

        :param uses: (driver, pool) → use
        :param classes: the cluster's device classes; None if they are unknown
        :param problem: why the uses are unknown; then no device is offered
        """
        pools: defaultdict[tuple[str, str], list[ResourceSlice]] = defaultdict(list)
        for part in slices:
            pools[part.driver, part.pool].append(part)
        before, self._read_pools = self._read_pools, {}
        nodes: defaultdict[str, tuple[Device, ...]] = defaultdict(tuple)
        for key in sorted(pools):
            use, pool = uses.get(key, NO_USE)._replace(problem=problem), before.get(key)
            if pool is None or not _is_same(pool.slices, pools[key]) or (pool.use, pool.classes) != (use, classes):
                pool = _ReadPool(pools[key], use, classes, self._read(key, pools[key], use, classes))
            self._read_pools[key] = pool
            for node, devices in pool.devices.items():
                nodes[node] = nodes[node] + devices if node in nodes else devices
        return dict(nodes)

    def _read(
        self, key: tuple[str, str], slices: Sequence[ResourceSlice], use: PoolUse, classes: Collection[str] | None
    ) -> dict[str, tuple[Device, ...]]:
        """The devices of one pool. One that can't be read has none, so that a hostile driver costs only its own."""
        try:
            return pool_devices(slices, use, classes)
        except Exception as error:  # noqa: BLE001  the values are a driver's
            if key not in self._unreadable:
                log.warning("The pool %s of %s offers no devices, it can't be read: %r", key[1], key[0], error)
                self._unreadable.add(key)
            return {}


def pool_uses(
    allocations: Iterable[ClaimAllocation], leased: Mapping[str, frozenset[str]]
) -> dict[tuple[str, str], PoolUse]:
    """(driver, pool) → its use.

    :param leased: id of a pod of our leases → ids of the devices of its lease
    """
    holders: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    ours: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for allocation in allocations:
        expected = frozenset().union(*(leased.get(uid, frozenset()) for uid in allocation.pod_uids))
        for id_ in allocation.devices:
            if id_ not in expected:
                holders[_pool_of(id_)][id_] = f"the claim {allocation.claim} has it"
    for ids in leased.values():
        for id_ in ids:
            if id_.count("/") > 1:
                ours[_pool_of(id_)].add(id_)
    return {key: PoolUse(holders.get(key, {}), frozenset(ours.get(key, ()))) for key in {*holders, *ours}}


def pool_devices(
    slices: Sequence[ResourceSlice], use: PoolUse = NO_USE, classes: Collection[str] | None = None
) -> dict[str, tuple[Device, ...]]:
    """Node → the devices of one pool on it. Devices that several nodes reach belong to none."""
    newest = max(part.generation for part in slices)
    current = [part for part in slices if part.generation == newest]
    devices = [device for part in current for device in part.devices]
    problem = _pool_problem(current, devices) or use.problem
    driver, pool = current[0].driver, current[0].pool
    names = {device.name: device for device in devices}  # a name that is there twice is one device, and a problem
    pins = _pins(list(names.values()))
    used = {_name(id_) for id_ in (*use.holders, *use.leased)}
    expected = expected_names(device.attributes for device in names.values())
    unfit = {name: attribute_fault(driver, device.attributes, expected) for name, device in names.items()}
    containers = {name: device for name, device in names.items() if name in used or unfit[name] is None}
    conflicts = _conflicts(current, containers, used) | dict(same_device_faults(driver, names, used))
    hidden = hidden_twins(driver, names, used)
    nodes: defaultdict[str, list[Device]] = defaultdict(list)
    for index, device in enumerate(sorted(names.values(), key=lambda device: device.name)):
        id_ = device_id(driver, pool, device.name)
        if device.node is None or len(id_) > _MAX_ID or device.name in hidden:
            continue
        pin = pins.get(device.name)
        read = unfit[device.name] or ("", False)
        fault = problem or next(_faults(driver, device, pin, classes, read[0]), None) or use.holders.get(id_)
        fault = fault or (None if id_ in use.leased else conflicts.get(device.name))
        nodes[device.node].append(_device(driver, id_, index, device, pin, fault, is_unread=read[1]))
    return {node: tuple(devices_of_node) for node, devices_of_node in nodes.items()}


def _is_same(left: Sequence[ResourceSlice], right: Sequence[ResourceSlice]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _pool_of(id_: str) -> tuple[str, str]:
    driver, _, rest = id_.partition("/")
    return driver, rest.rpartition("/")[0]


def _name(id_: str) -> str:
    return id_.rpartition("/")[2]


def _pool_problem(current: Sequence[ResourceSlice], devices: Sequence[SliceDevice]) -> str | None:
    wanted = current[0].slice_count
    if len(current) != wanted:
        return f"its driver has published {len(current)} of {wanted} slices of its pool"
    twice = [name for name, number in Counter(device.name for device in devices).items() if number > 1]
    return f"its driver publishes two devices with the name {twice[0]}" if twice else None


def _faults(
    driver: str, device: SliceDevice, pin: str | None, classes: Collection[str] | None, unfit: str
) -> Iterator[str]:
    wanted = device_class(driver, profile_of(device.attributes))
    if device.taints:
        yield f"device taints: {', '.join(device.taints)}"[:500]
    if device.is_shared:
        yield "several claims may share it: it can't be had as a whole"
    if unfit:
        yield unfit
    health = health_fault(device.attributes)
    if health is not None:
        yield health
    if classes is not None and wanted not in classes:
        yield f"the cluster has no DeviceClass {wanted}"
    if pin is None:
        yield "its driver publishes no attribute that tells it apart: DevicePodOperator(dra=True) can claim it"


def _pins(devices: Sequence[SliceDevice]) -> dict[str, str]:
    """Name of a device → the best attribute with a value that no other device has. Some have none."""
    values = Counter((pin, *_value(device, pin)) for device in devices for pin in PINS if pin in device.attributes)
    return {
        device.name: pin
        for device in devices
        for pin in reversed(PINS)  # the best comes last and counts
        if values[pin, *_value(device, pin)] == 1
    }


def _value(device: SliceDevice, pin: str) -> tuple[type, object]:
    """With its type: True is no 1 in a claim."""
    value = device.attributes.get(pin)
    return type(value), value


def _conflicts(
    current: Sequence[ResourceSlice], names: Mapping[str, SliceDevice], used: Collection[str]
) -> dict[str, str]:
    """Name → why a device does not fit beside the used ones and the larger ones."""
    free_counters = dict(next((part.counters for part in current if part.counters), {}))
    for part in current:
        free_counters |= part.counters
    conflicts: dict[str, str] = {}
    order = sorted(names.values(), key=lambda d: (d.name not in used, -sum(d.counters.values()), d.name))
    for device in order:
        if not _fits(device.counters, free_counters) and device.name not in used:
            conflicts[device.name] = "it is a part of a device that is in use or offered as a whole, or has such parts"
            continue
        for counter, amount in device.counters.items():
            if counter in free_counters:
                free_counters[counter] -= amount
    return conflicts


def _fits(wanted: Counters, free_counters: Counters) -> bool:
    return all(free_counters.get(counter, 0) >= amount for counter, amount in wanted.items())


def _device(
    driver: str, id_: str, index: int, device: SliceDevice, pin: str | None, fault: str | None, *, is_unread: bool
) -> Device:
    kind = driver_kind(driver)
    assert kind is not None
    attributes, profile = device.attributes, profile_of(device.attributes)
    model = next((str(attributes[name]) for name in MODEL_NAMES if name in attributes), kind.kind)
    model = next((name for name, label in GOOGLE.items() if label == model), model)
    if kind.vendor == "aws":
        model = model.partition(".")[0]  # the chips are called like their machines: trn2.48xlarge
    pinned = {} if pin is None else {PIN_KEY: pin, PIN_VALUE_KEY: attributes[pin]}
    is_nameless = pin is None and profile is None  # partitions that are made on demand have no name yet
    unread = {UNREAD_KEY: True} if is_unread or is_nameless else {}
    return Device(
        id=id_,
        vendor=device_word(kind.vendor),
        kind=kind.kind,
        model=model_word(model, kind.vendor),
        index=index,
        memory_bytes=device.memory_bytes,
        partition=None if profile is None else device_word(profile),
        leasable=fault is None,
        problem=fault,
        driver=_text(attributes.get("driverVersion")),
        capability=_text(attributes.get("cudaComputeCapability")),
        details={CLASS_KEY: device_class(driver, profile), **pinned, **unread},
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
