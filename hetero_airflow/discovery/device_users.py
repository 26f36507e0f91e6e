"""Which processes use the devices of this host: what the vendors' software says, and who keeps a device node open.

A process that the vendor's software lists under one device counts for that one only: to find its devices, a framework
opens the nodes of all. Processes of discovery itself do not count.
"""

import os
import pwd
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hetero_airflow.model.device import LEFT_OUT_KEY, NODE_KEY, UNCOVERED_KEY, Device
from hetero_airflow.model.worker import DeviceUser, Inventory, Worker

_OURS = b"hetero_airflow.discovery"
"""In the command of the probes, the watch for XIDs and the burn-in."""


class NodeUsers(NamedTuple):
    """The result of a look at all processes."""

    pids: dict[str, set[int]]
    """Device id → the processes that have its node open."""
    is_complete: bool
    """Whether the files of every process could be read. Only root can read those of other users."""


def node_users(nodes: Mapping[str, str], proc: Path = Path("/proc")) -> NodeUsers:
    """The processes that keep device nodes open.

    :param nodes: device id → path of its node
    """
    devices_of: dict[str, list[str]] = {}
    for device_id, node in nodes.items():
        devices_of.setdefault(os.path.realpath(node), []).append(device_id)
    pids: dict[str, set[int]] = {device_id: set() for device_id in nodes}
    is_complete = True
    for pid in (int(entry) for entry in os.listdir(proc) if entry.isdigit()) if nodes else ():
        try:
            for node in set(_open_files(proc / str(pid) / "fd")) & devices_of.keys():
                for device_id in devices_of[node]:
                    pids[device_id].add(pid)
        except PermissionError:
            is_complete = is_complete and not _has_command(proc / str(pid))
    return NodeUsers(pids, is_complete)


def _open_files(folder: Path) -> Iterator[str]:
    """The paths of a process's open files.

    :raises PermissionError: the process belongs to another user
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        for number in os.listdir(folder):
            with suppress(FileNotFoundError, ProcessLookupError):
                yield os.readlink(folder / number)


def _has_command(process: Path) -> bool:
    """False for threads of the kernel, which open no device node."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


def with_nodes(worker: Worker, root: Path = Path("/")) -> Worker:
    """The worker; devices without a node get the one for rendering that the kernel made for their PCI address."""

    def with_node(device: Device) -> Device:
        if device.details.get(NODE_KEY) or device.pci is None or device.parent is not None:
            return device
        names = sorted(path.name for path in (root / f"sys/bus/pci/devices/{device.pci}/drm").glob("renderD*"))
        node = {NODE_KEY: f"/dev/dri/{names[0]}"} if names else {}
        return device.model_copy(update={"details": device.details | node})

    return worker.model_copy(update={"devices": tuple(map(with_node, worker.devices))})


def with_users(inventory: Inventory, vendor_pids: Mapping[str, Collection[int]]) -> Inventory:
    """The inventory with the processes that use its devices; marks the devices of which nobody can tell.

    :param vendor_pids: device id → pids, of the devices of which the vendor's software tells
    """
    worker = with_nodes(inventory.worker)
    devices = [device for device in worker.devices if can_have_users(device)]
    nodes = {device.id: str(device.details[NODE_KEY]) for device in devices if device.details.get(NODE_KEY)}
    opened = node_users(nodes)
    uncovered = {
        device.id
        for device in devices
        if device.id not in vendor_pids and not (opened.is_complete and device.id in nodes)
        if not device.details.get(LEFT_OUT_KEY)
    }
    users = tuple(_named(_without_left_out(join_users(vendor_pids, opened.pids), devices)))
    marked = tuple(
        device.model_copy(update={"details": device.details | {UNCOVERED_KEY: True}})
        if device.id in uncovered
        else device
        for device in worker.devices
    )
    return inventory.model_copy(update={"worker": worker.model_copy(update={"devices": marked}), "users": users})


def current_users(inventory: Inventory) -> list[DeviceUser]:
    """The processes that use the devices of an inventory now. Takes milliseconds, as `lease_users` does.

    Where only the vendor's tools can tell, those that the inventory names and that still run.
    """
    devices = [device for device in inventory.worker.devices if can_have_users(device)]
    nodes = {device.id: str(device.details[NODE_KEY]) for device in devices if device.details.get(NODE_KEY)}
    ids = [device.id for device in devices if device.vendor == "nvidia"]
    opened, vendor_pids = node_users(nodes), (_vendor_pids("nvidia", ids) or {}) if ids else {}
    reported = vendor_pids.keys() | (nodes.keys() if opened.is_complete else set())
    before = [user for user in inventory.users if user.device_id not in reported and _may_run(user)]
    now = list(_named(_without_left_out(join_users(vendor_pids, opened.pids), devices)))
    pairs = {(user.device_id, user.pid) for user in now}
    return now + [user for user in before if (user.device_id, user.pid) not in pairs]


def _without_left_out(pids: Mapping[str, set[int]], devices: list[Device]) -> dict[str, set[int]]:
    """The users without those of devices that this host leaves to others."""
    ids = {device.id for device in devices if device.details.get(LEFT_OUT_KEY)}
    return {id_: users for id_, users in pids.items() if id_ not in ids}


def _vendor_pids(vendor: str, ids: Collection[str]) -> Mapping[str, Collection[int]] | None:
    """Device id → pids, of devices of which the vendor's library tells; `amd` says why AMD's can't. Else None."""
    if vendor != "nvidia":
        return None
    from hetero_airflow.discovery import nvidia

    return nvidia.lease_users(ids)


def _may_run(user: DeviceUser) -> bool:
    """False for a process that has ended. One without a name belongs to a container that this one does not see."""
    return not user.name or (Path("/proc") / str(user.pid)).exists()


def can_have_users(device: Device) -> bool:
    """Whether a process that uses the device can be seen at all: a CPU or a simulated device is used by nobody."""
    return device.kind != "cpu" and not device.simulated


def join_users(
    vendor_pids: Mapping[str, Collection[int]], node_pids: Mapping[str, Collection[int]]
) -> dict[str, set[int]]:
    """Device id → pids, from the vendor's software and from open nodes.

    >>> join_users({"GPU-0": [7], "GPU-1": []}, {"GPU-0": [7, 8], "GPU-1": [7]})
    {'GPU-0': {8, 7}, 'GPU-1': set()}
    """
    listed = {pid for pids in vendor_pids.values() for pid in pids}
    return {
        device_id: {
            *vendor_pids.get(device_id, ()),
            *(pid for pid in node_pids.get(device_id, ()) if pid not in listed),
        }
        for device_id in [*vendor_pids, *(id_ for id_ in node_pids if id_ not in vendor_pids)]
    }


def _named(pids_of: Mapping[str, Collection[int]]) -> Iterator[DeviceUser]:
    for device_id, pids in pids_of.items():
        for pid in sorted(pids):
            user = describe_user(device_id, pid)
            if user is not None:
                yield user


def describe_user(device_id: str, pid: int) -> DeviceUser | None:
    """A process that uses a device, with its name; None if it belongs to discovery."""
    process = Path("/proc") / str(pid)
    try:
        if _OURS in (process / "cmdline").read_bytes():
            return None
        name, owner = (process / "comm").read_text(errors="replace").strip(), process.stat().st_uid
    except OSError:
        return DeviceUser(device_id=device_id, pid=pid)
    try:
        return DeviceUser(device_id=device_id, pid=pid, name=name, owner=pwd.getpwuid(owner).pw_name)
    except KeyError:
        return DeviceUser(device_id=device_id, pid=pid, name=name, owner=str(owner))


def lease_users(vendor: str, ids: Collection[str], nodes: Collection[str]) -> list[DeviceUser] | None:
    """The processes that use the devices of a lease; None if neither the vendor's library nor the nodes can tell.

    Takes milliseconds; `discover` asks the vendors' tools too, which takes a second.

    :param nodes: the nodes of the devices
    """
    vendor_pids = _vendor_pids(vendor, ids)
    opened = node_users({node: node for node in nodes})
    if vendor_pids is None and not (opened.is_complete and len(nodes) == len(ids)):
        return None
    return list(_named(join_users(vendor_pids or {}, opened.pids)))
