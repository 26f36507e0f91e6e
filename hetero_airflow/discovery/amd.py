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

ROCm 7 puts both lists into ``{"gpu_data": [...]}``; ROCm 5.7 says ``driver_version`` and ``"vram_size_mb": "65520 MB"``
(gpustack issue 4848). "MB" are mebibytes: 65520 on an MI210 of 64 GiB.

An MI300X can be divided into compute partitions (``DPX``, ``CPX``), each a GPU of its own for ROCr, and its memory into
NPS1 to NPS4. Partitions of one chip share its serial number and PCI address but for the function, and amd-smi may give
each the memory of the whole chip (amdsmi issues 97 and 134).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hetero_airflow.discovery.amd_library import read_library
from hetero_airflow.discovery.amd_topology import KfdNode, kfd_gpus, match_nodes, read_nodes
from hetero_airflow.discovery.left_out import agent_variables, listed, number_below, offer_only
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
from hetero_airflow.model.device import NODE_KEY, Device, Telemetry
from hetero_airflow.model.devices.memory import INTEGRATED_KEY, SET_ASIDE_KEY, is_integrated
from hetero_airflow.model.devices.names import AMD_MODES, amd_chip

MAX_GPUS = 256
NODES = "/dev/kfd"
_MIB = 1 << 20

_MODE = re.compile(r"(spx|dpx|tpx|qpx|cpx)(?:[_-](nps[0-9]))?")
_MAX_PARTS = 8
"""Of a chip that is not known; no chip of AMD has more."""

_HOST_MEMORY = ("DDR", "LPDDR")
"""How the types of a host's memory begin; a card has GDDR or HBM."""

_REPORT = 'update hetero-airflow, or report the output of "amd-smi static --json"'

_NEEDED = {
    "name": (("asic", "market_name"), ("board", "product_name")),
    "PCI address": (("bus", "bdf"),),
    "memory": (("vram", "size"), ("vram", "vram_size_mb")),
}
"""What each entry says, if only ``N/A`` → its names in the versions of amd-smi."""


def probe() -> ProbeResult:
    """The AMD GPUs that the driver shows to this process.

    :raises ProbeError: amd-smi fails or gives an unreadable answer
    """
    answers = read_library()
    kfd, environment = read_nodes(), agent_variables()
    if answers is not None:
        return parse(*answers, kfd, environment)
    tool = find_tool("amd-smi", "/opt/rocm/bin")
    if tool is None and find_tool("hy-smi"):
        return ProbeResult()  # a Hygon DCU, whose driver has /dev/kfd too; `unprobed` has a line for it
    if tool is None:
        return ProbeResult(problems=missing_tool_problem(NODES, "amd-smi", "install the package amd-smi-lib"))
    static = parse_json(run_tool(tool, "static", "--json"))
    metric = parse_json(run_tool(tool, "metric", "--json"))
    topology = parse_json(run_tool(tool, "topology", "--json")) if len(_gpus(static)) > 1 else []
    return parse(static, metric, topology, kfd, environment)


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


def parse(
    static: Any,
    metric: Any,
    topology: Any = (),
    kfd: Sequence[Mapping[str, int]] | None = None,
    environment: Mapping[str, str] = {},
) -> ProbeResult:
    """Devices and telemetry from the three answers of amd-smi, joined by the GPU's number, and the nodes of the KFD.

    The index is ROCr's number. The id is ROCr's text for the GPU where that is certain (`amd_topology`), else its PCI
    address.

    :param kfd: the properties of the KFD's nodes; None means that amd-smi and ROCr count alike
    :param environment: the agent's variables; GPUs that they leave out are not leasable
    """
    gpus = _gpus(static)
    addresses = {number: to_pci(_at(gpu, "bus", "bdf")) for number, gpu in gpus.items()}
    rocr_gpus = None if kfd is None else kfd_gpus(kfd)
    nodes = {} if rocr_gpus is None else match_nodes(addresses, rocr_gpus)
    ids = {
        number: (nodes[number].id if number in nodes else None) or addresses[number] or f"amd-{number}"
        for number in gpus
    }
    links = _gpus(topology)
    chips = Counter(address[:-2] for address in addresses.values() if address)
    chips |= Counter(node.chip for node in rocr_gpus or ())  # a container may have one partition of several
    devices = []
    for number, gpu in gpus.items():
        device = _with_partition(_device(number, gpu, ids, links.get(number, {})), gpu, chips)
        problem = device.problem or _doubt(gpu) or (_NO_NODE if rocr_gpus is not None and number not in nodes else None)
        device = device.model_copy(update={"problem": problem, "leasable": problem is None})
        devices.append(_without_set_aside(_with_node(device, nodes.get(number)), gpu))
    metrics = _gpus(metric)
    telemetry = tuple(
        _telemetry(device, metrics[number]) for number, device in zip(gpus, devices, strict=True) if number in metrics
    )
    ids_of_rocr = [node.id for node in rocr_gpus] if rocr_gpus is not None else [None] * len(devices)
    offered = _offered(devices, ids_of_rocr, environment)
    return ProbeResult(offered, telemetry, problems=tuple(_problems(static, gpus, rocr_gpus)))


def _offered(
    devices: Sequence[Device], rocr_ids: Sequence[str | None], environment: Mapping[str, str]
) -> tuple[Device, ...]:
    """The devices; those that the agent's variables leave out are not leasable.

    HIP reads HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES if that is empty, and counts what ROCr shows
    (ROCm/clr, rocclr/device/rocm/rocdevice.cpp).
    """
    used = ["ROCR_VISIBLE_DEVICES"] if "ROCR_VISIBLE_DEVICES" in environment else []
    used += [name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if environment.get(name)][:1]
    numbers = list(range(len(rocr_ids)))
    for name in used:
        shown = [rocr_ids[number] for number in numbers]
        numbers = [numbers[place] for place in listed(environment[name], partial(_place_of, ids=shown))]
    if not used:
        return tuple(devices)
    cause = " and ".join(f"{name}={environment[name][:50]}" for name in used)
    return offer_only(devices, {device.id for device in devices if device.index in numbers}, cause)


def _place_of(word: str, ids: Sequence[str | None]) -> int | None:
    """The place of a number, or of a text that is the beginning of one id only, as ROCr reads it."""
    if not word.upper().startswith("G"):
        return number_below(len(ids))(word)
    places = [n for n, id_ in enumerate(ids) if id_ and 5 <= len(word) <= 20 and id_.upper().startswith(word.upper())]
    return places[0] if len(places) == 1 else None


_NO_NODE = "The kernel's KFD shows no GPU with its address, so ROCr does not see it; look at rocminfo."


def _problems(static: Any, gpus: Mapping[int, Mapping[str, Any]], rocr_gpus: Sequence[KfdNode] | None) -> Iterator[str]:
    """A line for what is not understood, and for GPUs that only the kernel shows."""
    entries = _entries(static)
    if entries is None:
        yield f"amd-smi's answer has no list of GPUs, so which there are is unknown; {_REPORT}."
    elif len(entries) != len(gpus):
        yield f"{len(entries) - len(gpus)} of {len(entries)} entries of amd-smi are not understood; {_REPORT}."
    yield from (f"GPU {number}: {doubt}" for number, gpu in list(gpus.items())[:8] if (doubt := _doubt(gpu)))
    if rocr_gpus is not None and len(rocr_gpus) > len(gpus):
        yield f"The kernel's KFD shows {len(rocr_gpus)} GPUs, but amd-smi only {len(gpus)}; run both as this user."


def _doubt(gpu: Mapping[str, Any]) -> str | None:
    """What an entry should say and does not."""
    lacking = [name for name, paths in _NEEDED.items() if not any(_has(gpu, *path) for path in paths)]
    if not (lacking or _has(gpu, *_NEEDED["name"][0]) or to_text(_at(gpu, "board", "product_name"))):
        lacking = ["name"]
    vram = _vram(gpu)
    is_number = to_number(vram) is not None or (isinstance(vram, Mapping) and "value" not in vram)
    if not lacking and is_number and _memory(gpu) is None:
        lacking = ["memory in a known unit"]
    return f"amd-smi's entry has no {' and no '.join(lacking)} that is understood; {_REPORT}." if lacking else None


def _has(answer: Any, key: str, inner: str) -> bool:
    part = answer.get(key)
    return isinstance(part, Mapping) and inner in part


def _vram(gpu: Mapping[str, Any]) -> Any:
    return next((_at(gpu, *path) for path in _NEEDED["memory"] if _has(gpu, *path)), None)


def _memory(gpu: Mapping[str, Any]) -> int | None:
    """Bytes; None if there is no figure or its unit is unknown. The library gives a number of mebibytes."""
    value = _vram(gpu)
    unit = value.get("unit") if isinstance(value, Mapping) else value
    word = unit.strip().lstrip("0123456789. ") if isinstance(unit, str) else "MB"
    return to_bytes(value, _MIB) if word in ("MB", "MiB", "") else None


def _with_partition(device: Device, gpu: Mapping[str, Any], chips: Mapping[str, int]) -> Device:
    """The device; if it is a partition of a chip, as such, with its part of the memory."""
    chip = device.pci[:-2] if device.pci else None
    shown = chips.get(chip or "", 1)
    text = to_text(device.details.get("compute_partition"))
    mode = _MODE.fullmatch((text or "spx").lower())
    memory_mode = to_word(_at(gpu, "partition", "memory_partition"), "") or (mode and mode[2])
    if mode is None or (mode[1] == "spx" and shown > 1) or (mode[1] != "spx" and not memory_mode):
        name = f"{text or 'unknown'} with memory partition {memory_mode or 'unknown'}"
        problem = f"Its compute partition is {name}, and {shown} GPUs are on its chip; {_REPORT}."
        return device.model_copy(update={"leasable": False, "problem": problem})
    if mode[1] == "spx":
        return device
    known = amd_chip(device.model)
    count = max(shown, AMD_MODES.get(mode[1], known[0] if known else _MAX_PARTS))
    return device.model_copy(
        update={
            "partition": f"{mode[1]}-{memory_mode}",
            "parent": f"chip {chip or device.id}",
            "memory_bytes": device.memory_bytes and _part(device.memory_bytes, count, known[1] << 30 if known else 0),
        }
    )


def _part(memory_bytes: int, count: int, chip_bytes: int) -> int:
    """A partition's memory, of which amd-smi may give the whole chip's: all together never have more than the chip.

    :param chip_bytes: 0 if unknown
    """
    is_of_part = memory_bytes * 2 <= chip_bytes
    return min(memory_bytes, chip_bytes // count) if is_of_part else memory_bytes // count


def _with_node(device: Device, node: KfdNode | None) -> Device:
    """The device with ROCr's number, the node that its users open, and its target where amd-smi gives none."""
    if node is None:
        return device
    details = device.details | ({NODE_KEY: node.render_node} if node.render_node else {})
    target = device.capability or node.target
    return device.model_copy(update={"index": node.number, "details": details, "capability": target})


def _without_set_aside(device: Device, gpu: Mapping[str, Any]) -> Device:
    """The device; of an integrated GPU, amd-smi gives only the memory that the firmware sets aside."""
    if (to_text(_at(gpu, "vram", "type")) or "").startswith(_HOST_MEMORY):
        device = device.model_copy(update={"details": device.details | {INTEGRATED_KEY: True}})
    if not is_integrated(device):
        return device
    details = device.details | {SET_ASIDE_KEY: device.memory_bytes}
    return device.model_copy(update={"memory_bytes": None, "details": details})


def _entries(answer: Any) -> Sequence[Any] | None:
    entries = answer.get("gpu_data") if isinstance(answer, Mapping) else answer
    return entries if isinstance(entries, (list, tuple)) else None


def _gpus(answer: Any) -> dict[int, Mapping[str, Any]]:
    """GPU number → its object, for the formats of ROCm 6 and 7."""
    gpus: dict[int, Mapping[str, Any]] = {}
    for entry in _entries(answer) or ():
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


def _device(number: int, gpu: Mapping[str, Any], ids: Mapping[int, str], links: Mapping[str, Any]) -> Device:
    entries = links.get("links")
    linked = [
        to_count(_at(link, "gpu"))
        for link in (entries if isinstance(entries, list) else ())
        if _at(link, "link_type") == "XGMI" and _at(link, "link_status") != "DISABLED"
    ]
    peers = [ids[peer] for peer in linked if peer is not None and peer != number and peer in ids]
    driver = to_text(_at(gpu, "driver", "version")) or to_text(_at(gpu, "driver", "driver_version"))
    target = to_text(_at(gpu, "asic", "target_graphics_version"))
    node = to_count(_at(gpu, "numa", "node"), limit=4096)
    return Device(
        id=ids[number],
        vendor="amd",
        kind="gpu",
        model=_model(gpu),
        index=number,
        memory_bytes=_memory(gpu),
        driver=to_version(driver) or driver,
        capability=target if target and target.startswith("gfx") else None,
        numa_node=node,
        pci=to_pci(_at(gpu, "bus", "bdf")),
        peers=tuple(dict.fromkeys(peers)),
        details={
            "pcie_generation": to_count((to_text(_at(gpu, "bus", "pcie_interface_version")) or "").split(" ")[-1]),
            "pcie_width": to_count(_at(gpu, "bus", "max_pcie_width")),
            "compute_units": to_count(_at(gpu, "asic", "num_compute_units")),
            "compute_partition": to_text(_at(gpu, "partition", "compute_partition"))
            or to_text(_at(gpu, "partition", "accelerator_partition")),
        },
    )


def _model(gpu: Mapping[str, Any]) -> str:
    """A name such as ``instinct-mi210``; the board's name if the chip's is only "AMD Radeon Graphics"."""
    names = [to_word(_at(gpu, *path), "") for path in (("asic", "market_name"), ("board", "product_name"))]
    named = [name.removeprefix("amd-") for name in names if any(character.isdigit() for character in name)]
    return to_word(named[0] if named else names[0] or names[1])


def _telemetry(device: Device, metric: Mapping[str, Any]) -> Telemetry:
    free = to_bytes(_at(metric, "mem_usage", "free_vram"), _MIB)
    is_of_chip = device.partition is not None and free is not None and free > (device.memory_bytes or 0)
    return Telemetry(
        device_id=device.id,
        memory_free_bytes=None if is_of_chip or is_integrated(device) else free,
        utilization=to_share(_at(metric, "usage", "gfx_activity")),
        temperature_c=_first(_at(metric, "temperature", sensor) for sensor in ("hotspot", "edge")),
        power_w=to_number(_at(metric, "power", "socket_power")),
        ecc_errors=to_count(_at(metric, "ecc", "total_uncorrectable_count")),
    )
