"""Google TPU chips, from /sys/bus/pci, their device nodes and the environment of a TPU VM.

A TPU is a PCI device of Google (0x1ae0); its device id gives its generation. Network cards and disks of a Google VM
have the same vendor and other device ids. The device node is ``/dev/accel<n>`` up to v4, later ``/dev/vfio/<IOMMU
group>``. A v5e host with one chip::

    /sys/bus/pci/devices/0000:00:04.0/vendor        0x1ae0
    /sys/bus/pci/devices/0000:00:04.0/device        0x0063
    /sys/bus/pci/devices/0000:00:04.0/numa_node     0
    /sys/bus/pci/devices/0000:00:04.0/iommu_group   -> ../../../kernel/iommu_groups/0
    TPU_ACCELERATOR_TYPE=v5litepod-1

The driver shows memory in use and temperature only to the process that runs on the chip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import read_pci, to_numa_node
from hetero_airflow.discovery.sources.values import to_pci, to_text
from hetero_airflow.model.device import Device

GOOGLE = "0x1ae0"

_MODELS = {
    ("0x0027", "0x004e"): "v2", ("0x0027", "0x004f"): "v3",
    ("0x005e", None): "v4", ("0x0063", None): "v5e", ("0x0062", None): "v5p", ("0x006f", None): "v6e",
    ("0x0076", None): "v7x",
}  # fmt: skip
"""(device id, subsystem id if it matters) → generation, as in Google's tpu-info and torch_xla."""

_MEMORY_GIB = {"v2": 16, "v3": 32, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7x": 192}
"""HBM of a chip, from Google's pages on TPU versions."""


def probe() -> ProbeResult:
    """The TPU chips of this host."""
    return parse(read(Path("/")), os.environ)


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
    for chip in chips:
        model = _model(chip)
        pci = to_pci(chip.get("pci"))
        if model is None or pci is None:
            continue
        node = to_text(chip.get("node"))
        accel = re.fullmatch(r"/dev/accel([0-9]{1,4})", node or "", re.ASCII)
        devices.append(
            Device(
                id=pci,
                vendor="google",
                kind="tpu",
                model=model,
                index=int(accel[1]) if accel else len(devices),
                memory_bytes=_MEMORY_GIB[model] << 30,
                leasable=node is not None,
                problem=None if node else "Its device node is missing; give the container /dev/vfio or /dev/accel*.",
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
    problems = [f"TPU_ACCELERATOR_TYPE={accelerator}, but no TPU is on the PCI bus; give the container /sys and /dev."]
    return ProbeResult(tuple(devices), problems=tuple(problems) if accelerator and not devices else ())


def _model(chip: Mapping[str, Any]) -> str | None:
    device = chip.get("device")
    return _MODELS.get((str(device), None)) or _MODELS.get((str(device), chip.get("subsystem_device")))
