"""Devices of a pool that are the same physical device, or a part of one: never two of them are offered. Pure.

A driver may publish a GPU twice, once for containers and once for virtual machines, with the same PCI address
(kubernetes-sigs/dra-driver-nvidia-gpu, PR 668). It may publish MIG instances that exist beside their GPU, which then
can't be had as a whole (issue 719). Where devices take from the same counters, these decide instead: see `pools`.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from hetero_airflow.engines.kubernetes.slices.drivers import (
    PARENT_NAMES,
    PCI_NAMES,
    is_for_machines,
    is_whole_node,
    profile_of,
    type_fault,
)
from hetero_airflow.engines.kubernetes.slices.resource_slices import SliceDevice

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def same_device_faults(
    driver: str, devices: Mapping[str, SliceDevice], used: Collection[str]
) -> Iterator[tuple[str, str]]:
    """(Name, why it is not offered) of the devices that another one stands for. A device may come twice.

    :param devices: name → device, of one pool
    :param used: names of the devices that claims or leases have
    """
    parts = {name: parent for name, device in devices.items() if (parent := _parent(device, devices)) is not None}
    for name, parent in parts.items():
        if parent in used:
            yield name, f"it is a part of {parent}, which is in use"
        if not devices[name].counters:
            yield parent, f"it is divided: its parts are offered, such as {name}"
    has_orphans = any(_marks(device) and name not in parts for name, device in devices.items())
    wholes = [device for name, device in devices.items() if name not in parts and profile_of(device.attributes) is None]
    for device in wholes:
        if has_orphans and not _addresses(device) and "uuid" not in device.attributes:
            yield device.name, "which of the published parts are its own is unknown: it has no PCI address"
        twins = [twin for twin in wholes if twin is not device and _addresses(twin) & _addresses(device)]
        yield from ((device.name, text) for text in _twin_faults(driver, device, twins, used))
    for device in wholes:
        if is_whole_node(device.attributes) and device.name in used:
            yield from ((name, f"{device.name}, which is in use, stands for all devices") for name in devices)


def hidden_twins(driver: str, devices: Mapping[str, SliceDevice], used: Collection[str]) -> set[str]:
    """Names of the devices for virtual machines that are the same as one for containers, and that nothing uses."""
    for_containers = [device for device in devices.values() if type_fault(driver, device.attributes) is None]
    shown = {address for device in for_containers for address in _addresses(device)}
    return {
        name
        for name, device in devices.items()
        if name not in used and is_for_machines(device.attributes) and _addresses(device) & shown
    }


def _twin_faults(driver: str, device: SliceDevice, twins: list[SliceDevice], used: Collection[str]) -> Iterator[str]:
    for twin in twins:
        fault = type_fault(driver, twin.attributes)
        if twin.name in used and device.name not in used:
            yield f"it is the same device as {twin.name}, which is in use"
        elif fault is None or fault[1]:
            yield f"its driver publishes {twin.name} with the same PCI address: which of the two to use is unknown"


def _parent(device: SliceDevice, devices: Mapping[str, SliceDevice]) -> str | None:
    """The device that this one is a part of; by its name if its attributes don't tell."""
    marks = _marks(device)
    is_part = bool(marks) or profile_of(device.attributes) is not None or device.attributes.get("type") == "mig"
    for name, other in devices.items() if is_part else ():
        known = _addresses(other) | {str(other.attributes.get(key)) for key in ("uuid", "deviceID")}
        is_whole = profile_of(other.attributes) is None
        if other is not device and is_whole and (marks & known or device.name.startswith(f"{name}-mig-")):
            return name
    return None


def _marks(device: SliceDevice) -> set[str]:
    return {_address(text) or text for name in PARENT_NAMES if (text := str(device.attributes.get(name, "")))}


def _addresses(device: SliceDevice) -> set[str]:
    return {text for name in PCI_NAMES if (text := _address(str(device.attributes.get(name, ""))))}


def _address(text: str) -> str:
    """The PCI address with its domain as four digits, as most tools write it; empty if it is none."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if _PCI.fullmatch(text.lower()) else ""
