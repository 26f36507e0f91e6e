"""Google TPU chips, from /sys/bus/pci, their device nodes and the environment of a TPU VM.

A TPU is a PCI device of Google (0x1ae0); its device id gives its generation. Network cards and disks of a Google VM
have the same vendor and other device ids. The device node is ``/dev/accel<n>`` up to v4, later ``/dev/vfio/<IOMMU
group>``. A v5e host with one chip::

    /sys/bus/pci/devices/0000:00:04.0/vendor        0x1ae0
    /sys/bus/pci/devices/0000:00:04.0/device        0x0063
    /sys/bus/pci/devices/0000:00:04.0/numa_node     0
    /sys/bus/pci/devices/0000:00:04.0/iommu_group   -> ../../../kernel/iommu_groups/0
    TPU_ACCELERATOR_TYPE=v5litepod-1

A chip of TPU7x has two functions, one for each of its chiplets, so a tpu7x-8 host with 4 chips shows 8
(tpu-inference pull request 1266). They are one device here: TPU_VISIBLE_CHIPS counts chips, so a chiplet alone can't
be leased (ray pull request 65723: "TPU_VISIBLE_CHIPS is chip granular").

The driver shows memory in use and temperature only to the process that runs on the chip.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_airflow.discovery.left_out import NAMES, listed, number_below, offer_only
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import read_pci, to_numa_node
from hetero_airflow.discovery.sources.values import to_pci, to_text
from hetero_airflow.model.device import Device
from hetero_airflow.settings import LEASE_VARIABLE

GOOGLE = "0x1ae0"

_MODELS = {
    ("0x0027", "0x004e"): "v2", ("0x0027", "0x004f"): "v3",
    ("0x005e", None): "v4", ("0x0063", None): "v5e", ("0x0062", None): "v5p", ("0x006f", None): "v6e",
    ("0x0076", None): "v7x",
}  # fmt: skip
"""(device id, subsystem id if it matters) → generation, as in Google's tpu-info and torch_xla."""

_MEMORY_GIB = {"v2": 16, "v3": 32, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7x": 192}
"""HBM of a chip, from Google's pages on TPU versions."""

_FUNCTIONS = {"v7x": 2}
"""PCI functions of a chip; 1 for all others."""

_OTHER_CLASSES = ("0x01", "0x02", "0x03", "0x06", "0x07", "0x08")
"""PCI classes of Google's disks, network cards and other devices that are no accelerator (pci.ids)."""


def probe() -> ProbeResult:
    """The TPU chips of this host."""
    hidden = dict.fromkeys(NAMES) if LEASE_VARIABLE in os.environ else {}
    return parse(read(Path("/")), {name: text for name, text in os.environ.items() if name not in hidden})


def read(root: Path) -> list[dict[str, Any]]:
    """Google's PCI devices, each with the ``node`` that this process sees, or None; `root` is another one in tests."""
    chips: list[dict[str, Any]] = []
    for device in read_pci(root, frozenset({GOOGLE})):
        folder = root / "sys/bus/pci/devices" / str(device["pci"])
        names = sorted(path.name for path in folder.glob("accel/accel[0-9]*"))
        nodes = [f"dev/{name}" for name in names] + [f"dev/vfio/{device['iommu_group']}"]
        node = next((node for node in nodes if (root / node).exists()), None)
        chips.append({**device, "node": node and f"/{node}"})
    return chips


def parse(chips: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> ProbeResult:
    """Devices in the order of their PCI addresses. A chip without a node is not leasable.

    The index is the number of ``/dev/accel<n>``, or else the position in this order, as TPU_VISIBLE_CHIPS counts.
    """
    devices: list[Device] = []
    accelerator = to_text(environment.get("TPU_ACCELERATOR_TYPE"))
    problems = [*_unknown_ids(chips)]
    models = Counter(_model(function) for function in chips)
    unpaired = {model for model, size in _FUNCTIONS.items() if models[model] % size}
    for model, functions in _chips(chips):
        chip, pci = functions[0], to_pci(functions[0].get("pci"))
        assert pci is not None
        nodes = [to_text(function.get("node")) for function in functions]
        node = nodes[0] if all(nodes) else None
        accel = re.fullmatch(r"/dev/accel([0-9]{1,4})", node or "", re.ASCII)
        lacking = None if node else "Its device node is missing; give the container /dev/vfio or /dev/accel*."
        if model in unpaired:
            lacking = "A PCI function of a chip is missing, and which belong together is unknown; mount all of /sys."
        elif problems and accel is None:
            lacking = "Its number for TPU_VISIBLE_CHIPS is unknown beside an unknown TPU; update hetero-airflow."
        devices.append(
            Device(
                id=pci,
                vendor="google",
                kind="tpu",
                model=model,
                index=int(accel[1]) if accel else len(devices),
                memory_bytes=_MEMORY_GIB[model] << 30,
                leasable=lacking is None,
                problem=lacking,
                numa_node=to_numa_node(to_text(chip.get("numa_node"))),
                pci=pci,
                details={
                    "node": node,
                    "accelerator_type": accelerator,
                    "topology": to_text(environment.get("TPU_TOPOLOGY")),
                    "worker_id": to_text(environment.get("TPU_WORKER_ID")),
                },
            )
        )
    if accelerator and not devices:
        problems.append(
            f"TPU_ACCELERATOR_TYPE={accelerator}, but no TPU is on the PCI bus; give the container /sys and /dev."
        )
    return ProbeResult(_offered(devices, environment), problems=tuple(problems))


def _offered(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices; those that TPU_VISIBLE_CHIPS, or its older name TPU_VISIBLE_DEVICES, does not list are left out."""
    name = next((name for name in ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES") if name in environment), None)
    if name is None:
        return tuple(devices)
    cause = f"{name}={environment[name]}"
    if name == "TPU_VISIBLE_DEVICES" and any(device.model in _FUNCTIONS for device in devices):
        return offer_only(devices, (), cause, ", which may count chips or their parts; set TPU_VISIBLE_CHIPS instead.")
    numbers = listed(environment[name], number_below(1 << 16))
    return offer_only(devices, {device.id for device in devices if device.index in numbers}, cause)


def _chips(functions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Model and functions of each chip: neighbours in the order of the addresses."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for function in functions:
        model = _model(function)
        if model is not None and to_pci(function.get("pci")):
            part = parts.setdefault(model, [])
            part.append(function)
            if len(part) == _FUNCTIONS.get(model, 1):
                yield model, parts.pop(model)
    yield from parts.items()


def _unknown_ids(functions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each id that is not known and may be that of a TPU: it has a node, or no class of another device."""
    for function in functions:
        kind = to_text(function.get("class"))
        may_be_tpu = to_text(function.get("node")) or kind
        if _model(function) is None and may_be_tpu and not (kind or "").startswith(_OTHER_CLASSES):
            name = f"{function.get('device')}:{function.get('subsystem_device')}"
            yield f"PCI id {name[:40]} at {function.get('pci')} is no known TPU; update hetero-airflow, or report it."


def _model(chip: Mapping[str, Any]) -> str | None:
    device = chip.get("device")
    return _MODELS.get((str(device), None)) or _MODELS.get((str(device), chip.get("subsystem_device")))
