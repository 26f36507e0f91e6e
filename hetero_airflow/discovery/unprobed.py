"""Accelerators on the PCI bus for which there is no probe: a line for each maker, so that they are not just missing.

Only files of /sys are read, so this needs no process of its own. A host's display adapter is no accelerator: ASPEED and
Matrox are not in the table, and an Intel GPU on bus 0 belongs to the CPU.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import read_pci

_GPUS, _ACCELERATORS = ("0x0300", "0x0302", "0x0380"), ("0x0302", "0x0380", "0x1200")
"""PCI classes: VGA, 3D, other display; 3D, other display, processing accelerator (pci.ids, list of classes)."""


class _Maker(NamedTuple):
    name: str
    """The vendor's word in a request."""
    product: str
    classes: tuple[str, ...] = _ACCELERATORS
    ids: frozenset[str] = frozenset()
    """Devices that count whatever their class is."""


_MAKERS = {
    "0x8086": _Maker("intel", "Intel GPU", _GPUS),
    "0x1da3": _Maker("habana", "Intel Gaudi accelerator"),
    "0x1d0f": _Maker(
        "aws", "AWS Neuron device", (), frozenset({"0x7064", "0x7164", "0x7264", "0x7364", "0x7564", "0x7565"})
    ),
    "0x1d94": _Maker("hygon", "Hygon DCU"),
    "0x1ed2": _Maker("furiosa", "Furiosa NPU"),
    "0x1eff": _Maker("rebellions", "Rebellions NPU"),
    "0x1e52": _Maker("tenstorrent", "Tenstorrent card"),
    "0x1ed5": _Maker("mthreads", "Moore Threads GPU", (*_GPUS, "0x1200")),
    "0xcabc": _Maker("cambricon", "Cambricon MLU"),
    "0x1e36": _Maker("enflame", "Enflame accelerator"),
    "0x9999": _Maker("metax", "MetaX GPU", (*_GPUS, "0x1200")),
    "0x1e3e": _Maker("iluvatar", "Iluvatar GPU"),
    "0x1d22": _Maker("kunlunxin", "Kunlun accelerator"),
    "0x1d95": _Maker("graphcore", "Graphcore IPU"),
    "0x1de0": _Maker("groq", "Groq accelerator"),
    "0x17cb": _Maker("qualcomm", "Qualcomm Cloud AI card", ("0x1200",)),
    "0x1e0d": _Maker("sambanova", "SambaNova accelerator"),
    "0x1f82": _Maker("d-matrix", "d-Matrix accelerator"),
}
"""PCI vendor id → maker, from github.com/pciutils/pciids (pci.ids), which also has the ids of the Neuron devices."""


def unprobed(root: Path = Path("/")) -> dict[str, ProbeResult]:
    """Maker → a result with one problem line, for each maker of which this host has devices."""
    counts: dict[_Maker, list[str]] = {}
    for device in read_pci(root, frozenset(_MAKERS)):
        maker = _MAKERS[str(device["vendor"])]
        is_of_class = (device["class"] or "")[:6] in maker.classes
        is_of_cpu = maker.name == "intel" and str(device["pci"]).startswith("0000:00:")
        if (is_of_class and not is_of_cpu) or device["device"] in maker.ids:
            counts.setdefault(maker, []).append(str(device["pci"]))
    return {maker.name: ProbeResult(problems=(_line(maker, found),)) for maker, found in counts.items()} | dict(
        _hygon_by_tool(root, counts)
    )


def _line(maker: _Maker, found: list[str]) -> str:
    places = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if found[4:] else "")
    return (
        f"{len(found)} × {maker.product} on the PCI bus ({places}), for which hetero-airflow has no probe, so none is "
        f"offered. Install a package with a probe, or set [hetero] exclude_devices = {maker.name}."
    )


def _hygon_by_tool(root: Path, counts: dict[_Maker, list[str]]) -> Iterator[tuple[str, ProbeResult]]:
    """Hygon's driver is a fork of AMD's with the same /dev/kfd; its tool is hy-smi (HAMi's and Hygon's pages)."""
    maker = _MAKERS["0x1d94"]
    if maker not in counts and (root / "dev/kfd").exists() and shutil.which("hy-smi"):
        text = "hy-smi and /dev/kfd exist: a Hygon DCU, for which hetero-airflow has no probe, so it offers none."
        yield maker.name, ProbeResult(problems=(text,))
