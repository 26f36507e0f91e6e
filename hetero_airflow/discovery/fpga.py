"""FPGA cards of Xilinx and Intel on the PCI bus, and the FPGA part of a system on a chip.

Cards are recognised by the PCI ids that their kernel drivers, xocl and dfl-pci, list. An Alveo card has two functions;
XRT opens the second one (the user function) by its address. A U250::

    /sys/bus/pci/devices/0000:65:00.1/vendor    0x10ee
    /sys/bus/pci/devices/0000:65:00.1/device    0x5005
    /sys/bus/pci/devices/0000:65:00.1/driver    -> ../../../bus/pci/drivers/xocl

A Zynq has no card; its FPGA manager represents it::

    /sys/class/fpga_manager/fpga0/name     Xilinx ZynqMP FPGA Manager
    /sys/class/fpga_manager/fpga0/state    operating
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import read_pci, read_text, to_numa_node
from hetero_airflow.discovery.sources.values import to_pci, to_text, to_version, to_word
from hetero_airflow.model.device import Device

XILINX = "0x10ee"
INTEL = "0x8086"

_CARDS: dict[tuple[str, str, str | None], tuple[str, str, int]] = {
    (XILINX, "0x5001", None): ("xilinx", "alveo-u200", 64),
    (XILINX, "0x5005", None): ("xilinx", "alveo-u250", 64),
    (XILINX, "0x500d", None): ("xilinx", "alveo-u280", 8),
    (XILINX, "0x5021", None): ("xilinx", "alveo-u50", 8),
    (XILINX, "0x505d", None): ("xilinx", "alveo-u55c", 16),
    (INTEL, "0x09c4", None): ("intel", "pac-arria-10", 8),
    (INTEL, "0x0b30", None): ("intel", "pac-n3000-arria-10", 9),
    (INTEL, "0x0b2b", None): ("intel", "pac-d5005-stratix-10", 32),
    (INTEL, "0xbcce", "0x138d"): ("intel", "pac-d5005-stratix-10", 32),
    (INTEL, "0xbcce", "0x1770"): ("intel", "n6000-agilex", 16),
    (INTEL, "0xbcce", "0x1771"): ("intel", "n6001-agilex", 16),
}
"""(vendor, device, subsystem if it matters) → vendor, model, GiB of HBM or else of DDR on the card (data sheets)."""

_DRIVERS = frozenset({"xocl", "xclmgmt", "dfl-pci"})
_ACCELERATOR = "0x1200"
_NO_FPGA = frozenset({"intel_vpu"})
"""The driver of the NPU in Intel's CPUs, which has the class of accelerators too."""

_MANAGERS = (("xilinx", "xilinx"), ("altera", "intel"), ("intel", "intel"), ("stratix", "intel"))
"""A word in the name of an FPGA manager → its vendor."""


def probe() -> ProbeResult:
    """The FPGAs of this host."""
    return parse(*read(Path("/")))


def read(root: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """FPGA cards of the two vendors on the PCI bus, and FPGA managers; `root` is another folder in tests."""
    cards: list[dict[str, Any]] = []
    for device in read_pci(root, frozenset({XILINX, INTEL})):
        if _card(device) or _may_be_fpga(device):
            folder = root / "sys/bus/pci/devices" / str(device["pci"])
            version = read_text(root / f"sys/module/{to_word(device['driver'])}/version")
            cards.append({
                **device,
                "driver_version": version,
                "regions": len(list(folder.glob("fpga_region/region*/dfl-port.*"))),
            })  # fmt: skip
    managers = [
        {
            "id": folder.name,
            "name": read_text(folder / "name"),
            "state": read_text(folder / "state"),
            "path": str((folder / "device").resolve()),
        }
        for folder in sorted((root / "sys/class/fpga_manager").glob("fpga[0-9]*"))
    ]
    return cards, managers


def parse(cards: Sequence[Mapping[str, Any]], managers: Sequence[Mapping[str, Any]]) -> ProbeResult:
    """Devices from the kernel's answers. A manager of a card on the PCI bus is not another device."""
    devices: list[Device] = []
    for card in cards:
        card_entry, pci = _card(card), to_pci(card.get("pci"))
        if card_entry and pci:
            driver = to_text(card.get("driver"))
            devices.append(
                Device(
                    id=pci,
                    vendor=card_entry[0],
                    kind="fpga",
                    model=card_entry[1],
                    index=len(devices),
                    memory_bytes=card_entry[2] << 30,
                    leasable=driver is not None,
                    problem=None if driver else "No driver is bound to it; load xocl or dfl-pci.",
                    driver=to_version(card.get("driver_version")),
                    numa_node=to_numa_node(to_text(card.get("numa_node"))),
                    pci=pci,
                    details={"driver_name": driver, "regions": card.get("regions") or None},
                )
            )
    for manager in managers:
        name = to_text(manager.get("name"), limit=128) or ""
        if "/pci" in str(manager.get("path")):
            continue
        state = to_text(manager.get("state"))
        devices.append(
            Device(
                id=to_word(manager.get("id"), fallback="fpga"),
                vendor=next((vendor for word, vendor in _MANAGERS if word in name.lower()), "generic"),
                kind="fpga",
                model=_chip(name),
                index=len(devices),
                memory_bytes=None,
                details={"state": state},
            )
        )
    return ProbeResult(tuple(devices), problems=tuple(_unknown_ids(cards)))


def _may_be_fpga(device: Mapping[str, Any]) -> bool:
    """Whether a card of the two vendors without a known id has the driver or the class of an FPGA."""
    is_accelerator = (to_text(device.get("class")) or "").startswith(_ACCELERATOR)
    return device.get("driver") in _DRIVERS or (is_accelerator and device.get("driver") not in _NO_FPGA)


def _unknown_ids(cards: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each card of which no function has a known id."""
    known = {str(card.get("pci"))[:-2] for card in cards if _card(card)}
    unknown = {str(card.get("pci"))[:-2]: card for card in cards if not _card(card) and to_pci(card.get("pci"))}
    for place, card in unknown.items():
        if place not in known:
            ids = ":".join(str(card.get(name))[:10] for name in ("vendor", "device", "subsystem_device"))
            yield f"PCI id {ids} at {card.get('pci')} is no known FPGA card; update hetero-airflow, or report it."


def _card(device: Mapping[str, Any]) -> tuple[str, str, int] | None:
    key = (str(device.get("vendor")), str(device.get("device")))
    return _CARDS.get((*key, None)) or _CARDS.get((*key, device.get("subsystem_device")))


def _chip(manager: str) -> str:
    """The chip in a manager's name.

    >>> _chip("Xilinx ZynqMP FPGA Manager"), _chip("Altera SOCFPGA FPGA Manager")
    ('zynqmp', 'socfpga')
    """
    name_parts = [w for w in to_word(manager).split("-") if w not in ("xilinx", "altera", "intel", "fpga", "manager")]
    return "-".join(name_parts) or "fpga"
