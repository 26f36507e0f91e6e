"""Devices that stay with others: by the variables with which the agent was started, and by [hetero] exclude_devices.

They stay visible, and no task gets them. A list of CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES ends at the first word
that names no device (NVIDIA's CUDA programming guide; ROCm/ROCR-Runtime, amd_filter_device.cpp), and so does every list
here. Each process reads its own variables, so those that a task gets count from all devices of the host again.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from hetero_airflow.discovery.isolation import probe_line
from hetero_airflow.discovery.sources.values import to_pci
from hetero_airflow.errors import RequestError, shorten
from hetero_airflow.model.device import LEFT_OUT_KEY, SICK_KEY, Device, device_tokens, matches_model
from hetero_airflow.model.devices.names import parse_device
from hetero_airflow.model.problem_lines import EXCLUDE_PREFIX
from hetero_airflow.model.worker import MAX_PROBLEMS, Inventory
from hetero_airflow.settings import LEASE_VARIABLE, SECTION

NAMES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES",
)  # fmt: skip


def agent_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that say which devices this agent or scheduler may offer. Those of a lease are not its own."""
    if LEASE_VARIABLE in environment:
        return {}
    return {name: environment[name] for name in NAMES if name in environment}


def listed(text: str, device_of: Callable[[str], int | None]) -> list[int]:
    """The devices in a variable, up to the first word that names none or one that is listed already.

    >>> listed("2,3,x,1", lambda word: int(word) if word.isdigit() else None)
    [2, 3]
    """
    devices: list[int] = []
    for word in text.split(","):
        device = device_of(word.strip())
        if device is None or device in devices:
            break
        devices.append(device)
    return devices


def number_below(count: int) -> Callable[[str], int | None]:
    """Reads a number below `count`, for `listed`."""
    return lambda word: int(word) if word.isascii() and word.isdigit() and int(word[:9]) < count else None


def offer_only(devices: Iterable[Device], offered: Collection[str], cause: str, why: str = "") -> tuple[Device, ...]:
    """The devices; those that are not offered are left out by the variable.

    :param offered: ids of devices
    :param cause: the variable with its value
    :param why: if the variable can't be understood, the reason and what to do
    """
    text = f"It is left out by {cause[:120]} of the agent{why or '.'}"
    return tuple(device if device.id in offered else left_out(device, text) for device in devices)


def left_out(device: Device, text: str) -> Device:
    """The device as one that no task gets. Its hardware is not tested, since it is another's."""
    details = {key: value for key, value in device.details.items() if key != SICK_KEY} | {LEFT_OUT_KEY: True}
    problem = f"{device.problem} {text}" if device.problem else text
    return device.model_copy(update={"leasable": False, "problem": problem[:500], "details": details})


def with_excluded(inventory: Inventory, setting: str) -> Inventory:
    """The inventory with the devices of [hetero] exclude_devices left out; an entry that names none is a problem line.

    The problem lines of a vendor that an entry names are left out too, such as those of a maker without a probe. Pure.
    """
    entries = [entry for entry in (part.strip() for part in setting.split(",")) if entry]
    if not entries:
        return inventory
    worker = inventory.worker
    matches = {entry: {device.id for device in worker.devices if _is_named(device, entry)} for entry in entries}
    excluded = set().union(*matches.values())
    text = f"It is left out by [{SECTION}] exclude_devices."
    devices = tuple(left_out(device, text) if device.id in excluded else device for device in worker.devices)
    lines = tuple(
        probe_line(
            EXCLUDE_PREFIX,
            f"{shorten(entry)} names no device of this host; write an id, a PCI address, a vendor or a model as "
            "`airflow hetero devices` shows them.",
        )
        for entry, ids in matches.items()
        if not ids and not any(line.startswith(f"{entry}: ") for line in inventory.problems)
    )
    kept = tuple(line for line in inventory.problems if line.partition(":")[0] not in entries)
    problems = (*kept, *lines)
    worker = worker.model_copy(update={"devices": devices, "problems": problems[:MAX_PROBLEMS]})
    return inventory.model_copy(update={"worker": worker, "problems": problems})


def _is_named(device: Device, entry: str) -> bool:
    """Whether an entry is the device's id, that of its GPU, its PCI address, or names its vendor, kind or model."""
    if entry.lower() in (device.id.lower(), (device.parent or "").lower(), device.model):
        return True
    if device.pci is not None and to_pci(entry) == device.pci:
        return True
    with suppress(RequestError):
        fields = parse_device(entry)
        model = fields.get("model")
        return (
            not fields.keys() & {"count", "share"}
            and (device.kind == "cpu") == (fields.get("kind") == "cpu")
            and all(fields[name] == getattr(device, name) for name in ("vendor", "kind", "partition") if name in fields)
            and (model is None or matches_model(str(model), device_tokens(device)))
        )
    return False
