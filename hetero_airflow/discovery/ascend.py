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

import glob
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hetero_airflow.discovery.ascend_tables import USAGES, ChipRows, Tables, is_number, read_tables
from hetero_airflow.discovery.left_out import agent_variables, listed, number_below, offer_only
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

NODES = "/dev/davinci[0-9]*"
_MIB = 1 << 20
_NEEDED = ("name", "health", "bus-id")
_NO_ADDRESS = frozenset({"na", "n/a", "-"})
_VERSION = re.compile(r"Version:\s*(\S{1,40})")
_HEALTHY = frozenset({"OK", "Warning"})
"""A device with a warning works; with Alarm, Critical or UNKNOWN it may not."""

_COLUMNS = re.compile(r"\s{2,}")
_LOGIC = frozenset({"NPU ID", "Chip ID", "Chip Logic ID"})
_REPORT = 'update hetero-airflow, or report the output of "npu-smi info"'
_USERS_UNKNOWN = "npu-smi's table of processes is not understood ({doubt}), so who uses the NPUs is unknown; {report}."


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
    result = parse(info, mapping, agent_variables())
    nodes = len(glob.glob(NODES))
    hidden = f"{nodes} nodes {NODES} exist, but npu-smi shows {len(result.devices)} NPUs; {_REPORT}."
    return ProbeResult(
        tuple(map(_on_this_host, result.devices)),
        result.telemetry,
        result.runtime,
        (*result.problems, *([hidden] if nodes > len(result.devices) else ())),
        result.users,
    )


def _on_this_host(device: Device) -> Device:
    """The device with its NUMA node, and without a node that does not exist, which nobody could be seen to use."""
    details = {key: value for key, value in device.details.items() if key != NODE_KEY or Path(str(value)).exists()}
    return device.model_copy(update={"numa_node": read_numa_node(device.pci), "details": details})


def parse(info: str, mapping: str = "", environment: Mapping[str, str] = {}) -> ProbeResult:
    """Devices and telemetry from the two answers of npu-smi; `mapping` may be empty.

    The id is the chip's PCI address; for chips that share one or have none, the numbers of card and chip. The index is
    the number in ASCEND_RT_VISIBLE_DEVICES. It counts the chips that this process sees: in a container with the host's
    NPUs 4 and 5 they are 0 and 1, and 4 is refused (gpustack issue 3352, vllm-ascend pull request 16256).

    :param environment: the agent's variables; chips that ASCEND_RT_VISIBLE_DEVICES does not list are not leasable
    :raises ProbeError: the first answer has no table of chips
    """
    tables = read_tables(info)
    if not tables.has_header:
        found = shorten(info.strip(), limit=160)
        raise ProbeError("npu-smi info", found=f"no table of NPUs but {found}", remedy="Run it by hand as this user")
    version = _VERSION.search(info)
    driver = to_version(version[1]) or to_text(version[1]) if version else None
    counts = Counter(chip.values.get("bus-id") for chip in tables.chips)
    cards = Counter(chip.npu for chip in tables.chips)
    users_unknown = tables.pids_doubt and _USERS_UNKNOWN.format(doubt=tables.pids_doubt, report=_REPORT)
    devices = []
    for chip, index in zip(tables.chips, _indexes(tables, mapping), strict=True):
        device = _device(chip, index, cards[chip.npu], is_alone=counts[chip.values.get("bus-id")] == 1)
        if device.leasable and users_unknown:
            device = device.model_copy(update={"leasable": False, "problem": users_unknown[:500]})
        devices.append(device.model_copy(update={"driver": driver}))
    telemetry = [_telemetry(chip, device.id) for chip, device in zip(tables.chips, devices, strict=True)]
    doubts = [f"NPU {chip.npu}, chip {chip.chip} ({chip.doubt})" for chip in tables.chips if chip.doubt]
    problems = [
        *([f"A row of npu-smi is not understood, so an NPU may be missing: {tables.lost_rows}; {_REPORT}."]
          if tables.lost_rows else []),
        *([f"npu-smi's rows are not understood for {'; '.join(doubts[:8])}; {_REPORT}."] if doubts else []),
        *([users_unknown] if users_unknown else []),
    ]  # fmt: skip
    users = {
        device.id: tuple((tables.pids or {}).get((chip.npu, chip.chip), ()))
        for chip, device in zip(tables.chips, devices, strict=True)
        if tables.pids is not None and not users_unknown
    }
    text = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is not None:
        numbers = listed(text, number_below(len(devices)))
        offered = {device.id for device in devices if device.index in numbers}
        devices = list(offer_only(devices, offered, f"ASCEND_RT_VISIBLE_DEVICES={text}"))
    return ProbeResult(tuple(devices), tuple(telemetry), problems=tuple(problems), users=users)


def _device(chip: ChipRows, index: int | None, chips_on_card: int, *, is_alone: bool) -> Device:
    bus, health = chip.values.get("bus-id", ""), chip.values.get("health", "UNKNOWN")
    pci = to_pci(bus)
    total = to_bytes(_usage(chip)[1], _MIB)
    problem = None if health == "OK" else f'npu-smi reports the health "{health[:40]}".'
    doubt = chip.doubt or _doubt(chip, total)
    if doubt:
        problem = f"npu-smi's rows for it are not understood ({doubt}); {_REPORT}."[:500]
    elif index is None:
        problem = 'Its number for ASCEND_RT_VISIBLE_DEVICES is unknown; look at "npu-smi info -m".'
    node = chip.physical_id if chip.physical_id is not None else index
    return Device(
        id=pci if pci and is_alone else f"npu-{chip.npu}-{chip.chip}",
        vendor="ascend",
        kind="npu",
        model=_model(chip.values.get("name", ""), chips_on_card, is_numbered="phy-id" in chip.values),
        index=index or 0,
        memory_bytes=total,
        leasable=health in _HEALTHY and doubt is None and index is not None,
        problem=problem,
        pci=pci,
        details={
            "npu": chip.npu,
            "chip": chip.chip,
            **({} if node is None else {NODE_KEY: f"/dev/davinci{node}"}),
            **({SICK_KEY: True} if "health" in chip.values and health not in _HEALTHY else {}),
        },
    )


def _doubt(chip: ChipRows, total: int | None) -> str | None:
    """What the chip's rows lack; an NPU of a system on a chip has no PCI address, a 310B shows ``NA``."""
    lacking = [name for name in _NEEDED if name not in chip.values]
    bus = chip.values.get("bus-id", "")
    if bus and to_pci(bus) is None and bus.lower() not in _NO_ADDRESS:
        lacking.append(f"address in {shorten(bus, limit=40)}")
    return ", ".join(f"no {name}" for name in [*lacking, *([] if total else ["memory in MB"])]) or None


def _usage(chip: ChipRows) -> tuple[str | None, str | None]:
    """Used and total memory in MiB: that of the HBM, or of other memory, whichever the chip has."""
    for name in USAGES:
        used, _, total = chip.values.get(name, "").partition("/")
        if to_count(total):
            return used, total
    return None, None


def _telemetry(chip: ChipRows, device_id: str) -> Telemetry:
    used, total = (to_bytes(amount, _MIB) for amount in _usage(chip))
    return Telemetry(
        device_id=device_id,
        memory_free_bytes=None if total is None or used is None else max(0, total - used),
        utilization=to_share(chip.values.get("aicore(%)")),
        temperature_c=to_number(chip.values.get("temp(c)")),
        power_w=to_number(chip.values.get("power(w)")),
    )


def _indexes(tables: Tables, mapping: str) -> list[int | None]:
    """The number of each chip for ASCEND_RT_VISIBLE_DEVICES: its place in the order of the logic ids.

    Without a mapping, the order is that of the physical ids, or of the table. None if a chip that is not understood may
    come before it, or if the mapping does not name it.
    """
    logic_ids = _logic_ids(mapping)
    if logic_ids is None:
        return [None] * len(tables.chips)
    if logic_ids:
        ranks = {number: rank for rank, number in enumerate(sorted(logic_ids.values()))}
        return [ranks.get(logic_ids.get((chip.npu, chip.chip), -1)) for chip in tables.chips]
    numbers = [chip.physical_id for chip in tables.chips]
    known = sorted(number for number in numbers if number is not None)
    if len(set(known)) < len(numbers):
        return list(range(len(numbers))) if not known and not tables.lost_rows else [None] * len(numbers)
    if tables.lost_rows and known != list(range(len(known))):
        return [None] * len(numbers)
    return [known.index(number) for number in numbers if number is not None]


def _logic_ids(mapping: str) -> dict[tuple[int, int], int] | None:
    """(NPU, chip) → logic id; None if the table is not understood, empty if there is none.

    The header's names select the columns, since Ascend 950 has others (SwanLab pull request 1719). A row without
    numbers is that of a card's controller.
    """
    lines = [_COLUMNS.split(line.strip()) for line in mapping[:262144].splitlines()]
    header = next((line for line in lines if len(_LOGIC & set(line)) > 1), None)
    if header is None:
        return {} if "Logic ID" not in mapping else None
    rows = [cells for cells in lines[lines.index(header) + 1 :] if cells != [""]]
    if any(header.count(name) > 1 for name in _LOGIC) or any(len(cells) != len(header) for cells in rows):
        return None
    ids: dict[tuple[int, int], int] = {}
    for cells in rows:
        row = dict(zip(header, cells, strict=True))
        numbers = [row.get("NPU ID", ""), row.get("Chip ID", "0"), row.get("Chip Logic ID", "")]
        if all(map(is_number, numbers)):
            npu, chip, logic = map(int, numbers)
            if (npu, chip) in ids or logic in ids.values():
                return None
            ids[npu, chip] = logic
    return ids or None


def _model(name: str, chips_on_card: int, *, is_numbered: bool) -> str:
    """``910b4-1`` from ``910B4-1``; npu-smi names the 910C ``Ascend910``: two chips on a card, with physical ids.

    >>> _model("310P3", 1, is_numbered=False), _model("Ascend910", 1, is_numbered=True)
    ('310p3', '910c')
    >>> _model("Ascend 910B4", 1, is_numbered=False)
    '910b4'
    """
    word = to_word(to_word(name).removeprefix("ascend"))
    return "910c" if word == "910" and (chips_on_card == 2 or is_numbered) else word
