"""Huawei Ascend NPUs, through the tool npu-smi.

``npu-smi info`` prints two tables; the first has two rows a chip. On a host with two 910B4 (npu-smi 25.2.2)::

    +------------------------------------------------------------------------------------------------+
    | npu-smi 25.2.2                   Version: 25.2.2                                               |
    +---------------------------+---------------+----------------------------------------------------+
    | NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
    | Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
    +===========================+===============+====================================================+
    | 0     910B4-1             | OK            | 78.2        40                0    / 0             |
    | 0                         | 0000:0E:00.0  | 0           0    / 0          61825/ 65536         |
    +===========================+===============+====================================================+

Cards with several chips have a second number in a chip's second row (``Phy-ID`` or ``Device``). A 310P has no column
for HBM. ``npu-smi info -m`` gives each chip's logic id, the value for ASCEND_RT_VISIBLE_DEVICES::

    NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
    0                              0                              0                              Ascend 910B4
    0                              1                              -                              Mcu
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, cast

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import find_tool, missing_tool_problem, read_numa_node, run_tool
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
from hetero_airflow.model.device import NODE_KEY, SICK_KEY, Device, Telemetry

MAX_CHIPS = 1024
NODES = "/dev/davinci[0-9]*"
_MIB = 1 << 20
_PROCESS = re.compile(
    r"^\|\s*([0-9]{1,6})\s+([0-9]{1,6})\s*\|\s*([0-9]{1,9})\s*\|[^|]*\|[^|]*\|\s*$", re.MULTILINE | re.ASCII
)
"""A row of the table of processes: NPU, chip and pid."""

_USAGE = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})", re.ASCII)
_VERSION = re.compile(r"Version:\s*(\S{1,40})")
_HEALTHY = frozenset({"OK", "Warning"})
"""A device with a warning works; with Alarm, Critical or UNKNOWN it may not."""


class _Chip(NamedTuple):
    """The cells of a chip's two rows, as they are."""

    npu: str
    name: str
    health: str
    power: str
    temperature: str
    chip: str
    physical_id: str | None
    bus: str
    ai_core: str
    used: str
    total: str


def probe() -> ProbeResult:
    """The Ascend NPUs that npu-smi shows to this process.

    :raises ProbeError: npu-smi fails or gives an unreadable answer
    """
    tool = find_tool("npu-smi", "/usr/local/sbin", "/usr/local/bin")
    if tool is None:
        return ProbeResult(problems=missing_tool_problem(NODES, "npu-smi", "mount it and /usr/local/Ascend/driver"))
    info = run_tool(tool, "info")
    try:
        mapping = run_tool(tool, "info", "-m")
    except ProbeError:
        mapping = ""  # older tools have no -m; then the numbers in the table count
    result = parse(info, mapping)
    return ProbeResult(
        tuple(d.model_copy(update={"numa_node": read_numa_node(d.pci)}) for d in result.devices),
        result.telemetry, result.runtime, result.problems, result.users,
    )  # fmt: skip


def parse(info: str, mapping: str = "") -> ProbeResult:
    """Devices and telemetry from the two answers of npu-smi; `mapping` may be empty.

    The id is the chip's PCI address; for chips that share one, the numbers of card and chip.

    :raises ProbeError: the first answer has no table of chips
    """
    chips = list(_chips(info))
    if not chips and "| NPU" not in info:
        found = shorten(info.strip(), limit=160)
        raise ProbeError("npu-smi info", found=f"no table of NPUs but {found}", remedy="Run it by hand as this user")
    logic_ids = _logic_ids(mapping)
    version = _VERSION.search(info)
    driver = to_version(version[1]) or to_text(version[1]) if version else None
    buses = Counter(chip.bus for chip in chips)
    cards = Counter(chip.npu for chip in chips)
    devices, telemetry = [], []
    for position, chip in enumerate(chips):
        pci = to_pci(chip.bus)
        device_id = pci if pci and buses[chip.bus] == 1 else f"npu-{chip.npu}-{chip.chip}"
        total = to_bytes(chip.total, _MIB)
        used = to_bytes(chip.used, _MIB)
        logic_id = logic_ids.get((chip.npu, chip.chip), to_count(chip.physical_id, limit=100_000))
        devices.append(
            Device(
                id=device_id,
                vendor="ascend",
                kind="npu",
                model=_model(chip.name, cards[chip.npu]),
                index=position if logic_id is None else logic_id,
                memory_bytes=total or 0,
                leasable=chip.health in _HEALTHY,
                problem=None if chip.health == "OK" else f'npu-smi reports the health "{chip.health[:40]}".',
                driver=driver,
                pci=pci,
                details={
                    "npu": to_count(chip.npu),
                    "chip": to_count(chip.chip),
                    NODE_KEY: f"/dev/davinci{position if logic_id is None else logic_id}",
                    **({} if chip.health in _HEALTHY else {SICK_KEY: True}),
                },
            )
        )
        telemetry.append(
            Telemetry(
                device_id=device_id,
                memory_free_bytes=None if total is None or used is None else max(0, total - used),
                utilization=to_share(chip.ai_core),
                temperature_c=to_number(chip.temperature),
                power_w=to_number(chip.power),
            )
        )
    return ProbeResult(tuple(devices), tuple(telemetry), users=_users(info, devices))


def _users(info: str, devices: Iterable[Device]) -> dict[str, tuple[int, ...]]:
    """Device id → pids in the table of processes; empty if npu-smi prints no such table."""
    if "Process id" not in info:
        return {}
    pids: dict[tuple[int, int], list[int]] = {}
    for npu, chip, pid in _PROCESS.findall(info):
        pids.setdefault((int(npu), int(chip)), []).append(int(pid))
    return {
        device.id: tuple(pids.get((cast(int, device.details["npu"]), cast(int, device.details["chip"])), ()))
        for device in devices
    }


def _chips(info: str) -> list[_Chip]:
    """The pairs of rows of the first table; other rows are left out."""
    chips: list[_Chip] = []
    first: tuple[list[str], str, list[str]] | None = None
    for line in info.splitlines():
        if len(chips) >= MAX_CHIPS:
            break
        # The table of processes has four columns, so its rows don't match.
        texts = line.strip().strip("|").split("|")
        left, middle, right = [text.split() for text in texts] if len(texts) == 3 else ([], [], [])
        if not left or not _is_number(left[0]) or not middle:
            continue
        if to_pci(middle[0]) is None:
            first = (left, middle[0], right) if len(left) > 1 else None
        elif first is not None:
            (npu, *name), health, readings = first
            # HBM is the last column, if there is one; a 310P has only other memory.
            usage = [(used, total) for used, total in _USAGE.findall(texts[2]) if total != "0"]
            chips.append(
                _Chip(
                    npu=npu,
                    name=" ".join(name),
                    health=health,
                    power=readings[0] if readings else "",
                    temperature=readings[1] if len(readings) > 1 else "",
                    chip=left[0],
                    physical_id=left[1] if len(left) > 1 else None,
                    bus=middle[0],
                    ai_core=right[0] if right else "",
                    used=usage[-1][0] if usage else "",
                    total=usage[-1][1] if usage else "",
                )
            )
            first = None
    return chips


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _logic_ids(mapping: str) -> dict[tuple[str, str], int]:
    """(NPU, chip) → logic id. The header's names select the columns, since Ascend 950 has more of them."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in mapping[:262144].splitlines()]
    header = next((line for line in lines if "Chip Logic ID" in line), None)
    if header is None or not {"NPU ID", "Chip ID"} <= set(header):
        return {}
    npu, chip, logic = (header.index(name) for name in ("NPU ID", "Chip ID", "Chip Logic ID"))
    return {
        (cells[npu], cells[chip]): int(cells[logic])
        for cells in lines
        if len(cells) == len(header) and _is_number(cells[logic])
    }


def _model(name: str, chips_on_card: int) -> str:
    """``910b4-1`` from ``910B4-1``; npu-smi names the 910C, with two chips on a card, ``Ascend910``.

    >>> _model("310P3", 1), _model("Ascend910", 2), _model("Ascend 910B4", 1)
    ('310p3', '910c', '910b4')
    """
    word = to_word(to_word(name).removeprefix("ascend"))
    return "910c" if word == "910" and chips_on_card == 2 else word
