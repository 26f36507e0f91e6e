"""AMD GPUs, through the library amdsmi if it can be imported, else through the tool amd-smi.

The commands are ``amd-smi static --json``, ``amd-smi metric --json`` and, for several GPUs,
``amd-smi topology --json``. The first one, for an RX 6600 (ROCm 6; shortened)::

    [{"gpu": 0,
      "asic": {"market_name": "Navi 23 [Radeon RX 6600/6600 XT", "asic_serial": "N/A"},
      "bus": {"bdf": "0000:0b:00.0", "max_pcie_width": 16, "pcie_interface_version": "Gen 4"},
      "driver": {"name": "amdgpu", "version": "7.0.0-3-pve"},
      "numa": {"node": 0, "affinity": -1},
      "vram": {"type": "GDDR6", "size": {"value": 8176, "unit": "MB"}}}]

and the second::

    [{"gpu": 0,
      "usage": {"gfx_activity": {"value": 1, "unit": "%"}},
      "power": {"socket_power": {"value": 6, "unit": "W"}},
      "temperature": {"edge": {"value": 36, "unit": "C"}, "hotspot": {"value": 37, "unit": "C"}},
      "ecc": {"total_uncorrectable_count": 0},
      "mem_usage": {"free_vram": {"value": 7974, "unit": "MB"}}}]

Neither reads the traffic of the PCIe link: the library says Mb/s where the kernel says GB/s for the same number, and
that number is the sum of both directions. The counter for each direction, on old chips, takes a second to read.

Neither tells who uses a GPU. Until July 2026, the list of processes (``amdsmi_get_gpu_process_list``) was empty for a
user who can't read the processes of others, and had each process under every GPU (ROCm/rocm-systems, pull request
8396). An empty list looked the same on a free GPU. The open device nodes tell it (`device_users`).

ROCm 7 puts both lists into ``{"gpu_data": [...]}``. "MB" are mebibytes: 65520 on an MI210 of 64 GiB.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hetero_airflow.discovery.amd_library import read_library
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import find_tool, missing_tool_problem, run_tool
from hetero_airflow.discovery.sources.values import (
    to_bytes,
    to_count,
    to_number,
    to_pci,
    to_share,
    to_text,
    to_version,
    to_word,
)
from hetero_airflow.errors import ProbeError, shorten
from hetero_airflow.model.device import Device, Telemetry

MAX_GPUS = 256
NODES = "/dev/kfd"
_MIB = 1 << 20


def probe() -> ProbeResult:
    """The AMD GPUs that the driver shows to this process.

    :raises ProbeError: amd-smi fails or gives an unreadable answer
    """
    answers = read_library()
    if answers is not None:
        return parse(*answers)
    tool = find_tool("amd-smi", "/opt/rocm/bin")
    if tool is None:
        return ProbeResult(problems=missing_tool_problem(NODES, "amd-smi", "install the package amd-smi-lib"))
    static = parse_json(run_tool(tool, "static", "--json"))
    metric = parse_json(run_tool(tool, "metric", "--json"))
    topology = parse_json(run_tool(tool, "topology", "--json")) if len(_gpus(static)) > 1 else []
    return parse(static, metric, topology)


def parse_json(text: str) -> Any:
    """The JSON in amd-smi's output, which may begin with warnings.

    >>> parse_json("amdsmi_interface.py:3569: SyntaxWarning: 'return' in a 'finally' block\\n[]")
    []

    :raises ProbeError: there is none
    """
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.startswith(("[", "{"))]
    for start in starts[:16]:
        try:
            return json.loads("".join(lines[start:]))
        except (ValueError, RecursionError):
            continue
    raise ProbeError("amd-smi --json", found=f"no JSON but {shorten(text.strip(), limit=120)}", remedy="Update ROCm")


def parse(static: Any, metric: Any, topology: Any = ()) -> ProbeResult:
    """Devices and telemetry from the three answers of amd-smi, joined by the GPU's number.

    The id is the value for ROCR_VISIBLE_DEVICES: ``GPU-`` and the chip's serial number. Without a serial number, or if
    partitions share it, the id is the PCI address.
    """
    gpus = _gpus(static)
    serials = Counter(_serial(gpu) for gpu in gpus.values())
    ids = {
        number: (_serial(gpu) if serials[_serial(gpu)] == 1 else None)
        or to_pci(_at(gpu, "bus", "bdf")) or f"amd-{number}"
        for number, gpu in gpus.items()
    }  # fmt: skip
    links = _gpus(topology)
    devices = tuple(_device(number, gpu, ids, links.get(number, {})) for number, gpu in gpus.items())
    metrics = _gpus(metric)
    telemetry = tuple(_telemetry(ids[number], metrics[number]) for number in gpus if number in metrics)
    return ProbeResult(devices, telemetry)


def _gpus(answer: Any) -> dict[int, Mapping[str, Any]]:
    """GPU number → its object, for the formats of ROCm 6 and 7."""
    entries = answer.get("gpu_data") if isinstance(answer, Mapping) else answer
    gpus: dict[int, Mapping[str, Any]] = {}
    for entry in entries if isinstance(entries, (list, tuple)) else ():
        number = to_count(entry.get("gpu"), limit=100_000) if isinstance(entry, Mapping) else None
        if number is not None and len(gpus) < MAX_GPUS:
            gpus.setdefault(number, entry)
    return gpus


def _at(answer: Any, *path: str) -> Any:
    for key in path:
        answer = answer.get(key) if isinstance(answer, Mapping) else None
    return answer


def _first(answers: Iterable[Any]) -> float | None:
    return next((number for number in map(to_number, answers) if number is not None), None)


def _serial(gpu: Mapping[str, Any]) -> str | None:
    text = (to_text(_at(gpu, "asic", "asic_serial")) or "").lower().removeprefix("0x")
    return f"GPU-{text}" if text.isalnum() and text.strip("0") else None


def _device(number: int, gpu: Mapping[str, Any], ids: Mapping[int, str], links: Mapping[str, Any]) -> Device:
    entries = links.get("links")
    linked = [
        to_count(_at(link, "gpu"))
        for link in (entries if isinstance(entries, list) else ())
        if _at(link, "link_type") == "XGMI" and _at(link, "link_status") != "DISABLED"
    ]
    peers = [ids[peer] for peer in linked if peer is not None and peer != number and peer in ids]
    driver = to_text(_at(gpu, "driver", "version"))
    target = to_text(_at(gpu, "asic", "target_graphics_version"))
    node = to_count(_at(gpu, "numa", "node"), limit=4096)
    return Device(
        id=ids[number],
        vendor="amd",
        kind="gpu",
        model=_model(gpu),
        index=number,
        memory_bytes=to_bytes(_at(gpu, "vram", "size"), _MIB) or 0,
        driver=to_version(driver) or driver,
        capability=target if target and target.startswith("gfx") else None,
        numa_node=node,
        pci=to_pci(_at(gpu, "bus", "bdf")),
        peers=tuple(dict.fromkeys(peers)),
        details={
            "pcie_generation": to_count((to_text(_at(gpu, "bus", "pcie_interface_version")) or "").split(" ")[-1]),
            "pcie_width": to_count(_at(gpu, "bus", "max_pcie_width")),
            "compute_units": to_count(_at(gpu, "asic", "num_compute_units")),
            "compute_partition": to_text(_at(gpu, "partition", "compute_partition")),
        },
    )


def _model(gpu: Mapping[str, Any]) -> str:
    """A name such as ``instinct-mi210``; the board's name if the chip's is only "AMD Radeon Graphics"."""
    names = [to_word(_at(gpu, *path), "") for path in (("asic", "market_name"), ("board", "product_name"))]
    named = [name.removeprefix("amd-") for name in names if any(character.isdigit() for character in name)]
    return to_word(named[0] if named else names[0] or names[1])


def _telemetry(device_id: str, metric: Mapping[str, Any]) -> Telemetry:
    return Telemetry(
        device_id=device_id,
        memory_free_bytes=to_bytes(_at(metric, "mem_usage", "free_vram"), _MIB),
        utilization=to_share(_at(metric, "usage", "gfx_activity")),
        temperature_c=_first(_at(metric, "temperature", sensor) for sensor in ("hotspot", "edge")),
        power_w=to_number(_at(metric, "power", "socket_power")),
        ecc_errors=to_count(_at(metric, "ecc", "total_uncorrectable_count")),
    )
