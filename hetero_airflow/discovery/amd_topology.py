"""What the kernel's KFD shows: by which number and id AMD's runtime ROCr names a GPU.

ROCr counts the nodes of ``/sys/class/kfd/kfd/topology/nodes`` whose properties it can read and that have a
``simd_count``, in their order. ROCR_VISIBLE_DEVICES takes such a number, or ``GPU-`` and the node's ``unique_id`` with
16 hexadecimal digits if no other node has it; the list ends at the first word that is neither
(ROCm/ROCR-Runtime, runtime/hsa-runtime/core/runtime/amd_filter_device.cpp). amd-smi has other numbers, and the serial
number of a board need not be the unique id (ROCm/rocm-systems issues 3041 and 3614). A node of an MI210::

    simd_count 416
    location_id 8960          (bus, device and function of its PCI address: 23:00.0)
    domain 0
    drm_render_minor 128
    gfx_target_version 90010
    unique_id 12345678901234567890

The partitions of a chip have the same address; the number of the partition is in the last 3 or in the first 4 of the 32
bits of ``location_id``, by the kernel's version (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hetero_airflow.discovery.sources.tools_and_files import read_text

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
MAX_NODES = 1024


class KfdNode(NamedTuple):
    """A GPU, or a partition of one, as ROCr sees it."""

    number: int
    """Its number in ROCR_VISIBLE_DEVICES."""
    id: str | None
    """Its text in ROCR_VISIBLE_DEVICES; None if that would not be certain."""
    chip: str
    """The PCI address without the function: ``0000:23:00``."""
    partition: int
    render_node: str | None
    target: str | None = None
    """``gfx90a``."""


def read_nodes(folder: Path = NODES) -> list[dict[str, int]]:
    """The properties of the nodes that can be read, in the order of their numbers."""
    numbers = sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())[:MAX_NODES]
    texts = (read_text(folder / str(number) / "properties", limit=65536) for number in numbers)
    return [_properties(text) for text in texts if text]


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal() and len(pair[1]) < 21}


def kfd_gpus(nodes: Iterable[Mapping[str, int]]) -> list[KfdNode]:
    """ROCr's GPUs in its order, from the properties of all nodes. Pure."""
    gpus = [node for node in nodes if node.get("simd_count")]
    unique_ids = Counter(node.get("unique_id", 0) for node in gpus)
    return [
        KfdNode(
            index,
            f"GPU-{unique_id:016x}" if unique_id and unique_ids[unique_id] == 1 else None,
            *_place(node),
            f"/dev/dri/renderD{node['drm_render_minor']}" if node.get("drm_render_minor") else None,
            _target(node.get("gfx_target_version", 0)),
        )
        for index, node in enumerate(gpus)
        for unique_id in (node.get("unique_id", 0),)
    ]


def _target(version: int) -> str | None:
    """The name of a ``gfx_target_version``: major, minor and stepping, two digits each.

    >>> _target(90010), _target(110501), _target(0)
    ('gfx90a', 'gfx1151', None)
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def _place(node: Mapping[str, int]) -> tuple[str, int]:
    """The chip and the number of the partition.

    >>> _place({"location_id": 0x20000500, "domain": 0}), _place({"location_id": 0x502, "domain": 1})
    (('0000:05:00', 2), ('0001:05:00', 2))
    """
    location = node.get("location_id", 0)
    chip = f"{node.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    return chip, (location >> 28 & 0xF) or (location & 7)


def match_nodes(addresses: Mapping[int, str | None], gpus: Sequence[KfdNode]) -> dict[int, KfdNode]:
    """Number of amd-smi → the GPU of the KFD with its PCI address. Pure.

    The partitions of a chip are taken in their order. Left out: a chip of which both show different numbers of
    partitions, and a GPU without an address, unless there is only one.

    :param addresses: number of amd-smi → PCI address
    """
    if len(addresses) == len(gpus) == 1:
        (number,), (gpu,) = addresses, gpus
        return {number: gpu} if addresses[number] is None or str(addresses[number])[:-2] == gpu.chip else {}
    numbers_of: defaultdict[str, list[int]] = defaultdict(list)
    for number, address in sorted(addresses.items(), key=lambda item: (item[1] or "", item[0])):
        if address is not None:
            numbers_of[address[:-2]].append(number)
    gpus_of: defaultdict[str, list[KfdNode]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda gpu: (gpu.partition, gpu.number)):
        gpus_of[gpu.chip].append(gpu)
    return {
        number: gpu
        for chip, numbers in numbers_of.items()
        if len(numbers) == len(gpus_of[chip])
        for number, gpu in zip(numbers, gpus_of[chip], strict=True)
    }
