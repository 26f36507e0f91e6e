"""Outputs of vendors' tools with a change that no version has: never more devices, never unused by mistake."""

import copy
import json
import re
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import amd, ascend, fpga, google, nvidia
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.testing import a_worker
from tests.discovery.conftest import FIXTURES


def offered(result):
    """What a request can get: the devices that are leased, with what a request or a task goes by."""
    return {(d.id, d.model, d.memory_bytes, d.partition, d.index) for d in result.devices if d.leasable}


def assert_no_more_is_offered(base, result):
    assert offered(result) <= offered(base)
    leased = {device.id for device in result.devices if device.leasable}
    unused = {id_ for id_, pids in result.users.items() if not pids and id_ in leased}
    assert not unused & {id_ for id_, pids in base.users.items() if pids}


def parsed(parse, *answers):
    try:
        return parse(*answers)
    except ProbeError:
        return ProbeResult()


TABLES = [(FIXTURES / f"ascend/npu-smi-info-{name}.txt").read_text() for name in ("910b4", "26", "310p3", "910b2c")]
MAPPING = (FIXTURES / "ascend/npu-smi-info-m-910b4.txt").read_text()


def a_changed_word(draw, line):
    """A name renamed, added, doubled or moved in a header, or a cell of it."""
    separator = draw(st.sampled_from(["|", "  "]))
    parts = line.split(separator)
    position = draw(st.sampled_from([n for n, part in enumerate(parts) if part.strip()]))
    change = draw(st.sampled_from(["rename", "unit", "add", "double", "move"]))
    if change == "rename":
        parts[position] = parts[position].replace(parts[position].strip(), draw(st.sampled_from(["XX", "Load", "ID"])))
    elif change == "unit":
        parts[position] = parts[position].replace("MB", "GB").replace("%", "permille")
    elif change == "move":
        parts.insert(draw(st.integers(0, len(parts))), parts.pop(position))
    else:
        parts.insert(position, " XX " if change == "add" else parts[position])
    return separator.join(parts)


@st.composite
def changed_tables(draw):
    """A table of npu-smi, and the same with one change: in a header, in a whole column, or with a row cut off."""
    text = draw(st.sampled_from(TABLES))
    lines = text.splitlines()
    rows = [n for n, line in enumerate(lines) if line.startswith("|") and "Version" not in line]
    headers = [n for n in rows if "Chip" in lines[n] or "NPU " in lines[n]]
    change = draw(st.sampled_from(["header", "column", "cut"]))
    if change == "header":
        number = draw(st.sampled_from(headers))
        lines[number] = a_changed_word(draw, lines[number])
    elif change == "cut":
        number = draw(st.sampled_from(rows))
        lines[number] = lines[number][: draw(st.integers(2, len(lines[number]) - 1))]
    else:
        first, second = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        is_doubled = draw(st.booleans())
        for number in rows:
            cells = lines[number].split("|")
            if is_doubled:
                cells.insert(1 + second, cells[1 + first])
            else:
                cells[1 + first], cells[1 + second] = cells[1 + second], cells[1 + first]
            lines[number] = "|".join(cells)
    return text, "\n".join(lines)


@given(changed_tables())
def test_npu_smi(tables):
    text, changed = tables
    assert_no_more_is_offered(ascend.parse(text), parsed(ascend.parse, changed))


@given(st.data())
def test_the_mapping_of_npu_smi(data):
    base = ascend.parse(TABLES[0], MAPPING)
    header, *rows = MAPPING.splitlines()
    changed = "\n".join([a_changed_word(data.draw, header.strip()), *rows])
    assert_no_more_is_offered(base, parsed(ascend.parse, TABLES[0], changed))


STATIC = [
    json.loads((FIXTURES / f"amd/static-{name}.json").read_text()) for name in ("rx6600", "mi300x-dpx", "mi250-rocm57")
]
KFD = [
    {"simd_count": 0},
    {"simd_count": 608, "location_id": 0x500, "unique_id": 0xC58123456789ABC, "drm_render_minor": 128},
    {"simd_count": 608, "location_id": 0x10000500, "unique_id": 0xC58123456789ABD, "drm_render_minor": 129},
    {"simd_count": 112, "location_id": 0xB00, "unique_id": 0},
    {"simd_count": 416, "location_id": 0x2900, "unique_id": 0xA1B2C3D4E5F60718},
]


def places(answer, path=()):
    """The places of all keys in a JSON answer."""
    items = answer.items() if isinstance(answer, dict) else enumerate(answer) if isinstance(answer, list) else ()
    for key, value in items:
        if isinstance(answer, dict):
            yield (*path, key)
        yield from places(value, (*path, key))


@given(st.data(), st.sampled_from(STATIC), st.booleans())
def test_amd_smi(data, static, has_kfd):
    """A key renamed, added, doubled or moved, a unit renamed, or an entry without one of its parts."""
    kfd = KFD if has_kfd else None
    changed = copy.deepcopy(static)
    *path, key = data.draw(st.sampled_from(list(places(static))))
    holder = changed
    for step in path:
        holder = holder[step]
    change = data.draw(st.sampled_from(["rename", "unit", "add", "cut", "move"]))
    if change == "add":
        holder["xx"] = holder[key]
    elif change == "unit":
        holder[key] = "GB" if key == "unit" else str(holder[key]).replace("MB", "PB") if key == "vram_size_mb" else (
            holder[key]
        )  # fmt: skip
    else:
        value = holder.pop(key)
        if change == "rename":
            holder["xx"] = value
        elif change == "move":
            holder["moved"] = {key: value}
    assert_no_more_is_offered(amd.parse(static, [], (), kfd), amd.parse(changed, [], (), kfd))


ANSWERS = {
    "nvmlDeviceGetName": "NVIDIA A40",
    "nvmlDeviceGetUUID": "GPU-a",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:3B:00.0"),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=48305799168, free=47000000000),
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7)],
    "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=8)],
}


class Nvml:
    """pynvml with one GPU of which some calls fail."""

    def __init__(self, failures):
        self._failures = failures

    def __getattr__(self, name):
        real = getattr(pynvml, name)
        if isinstance(real, type) or not callable(real):
            return real

        def call(*arguments):
            if name in self._failures:
                raise pynvml.NVMLError(self._failures[name])
            if name in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
                return 1
            if name not in ANSWERS:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return ANSWERS[name]

        return call


def without_memory():
    """A device of each vendor whose memory is taken from the answer of its software."""
    for static in STATIC:
        for vram in ({}, {"size": "N/A"}, {"size": {"value": 0, "unit": "MB"}}, None):
            changed = copy.deepcopy(static)
            for entry in changed.get("gpu_data", ()) if isinstance(changed, dict) else changed:
                entry["vram"] = vram
            yield from amd.parse(changed, []).devices
    for code in (3, 1, 999):
        yield from nvidia.parse(nvidia.read(Nvml({"nvmlDeviceGetMemoryInfo": code}))).devices
    for text in TABLES:
        cut = re.sub(r"[0-9]+ */ *[0-9]+ *\|", lambda match: "NA".ljust(len(match[0]) - 1) + "|", text)
        yield from ascend.parse(cut).devices
    yield from fpga.parse([], [{"id": "fpga0", "name": "Xilinx ZynqMP FPGA Manager", "path": "/x"}]).devices


UNMEASURED = list(without_memory())


@given(st.sampled_from(UNMEASURED), st.integers(1, 1 << 49), st.sampled_from(["{}..", "..{}", "{}..{}"]))
def test_a_device_whose_memory_is_not_reported_suits_no_bound(device, size, bound):
    healthy = device.model_copy(update={"leasable": True})
    for fields in ({"memory": bound.format(f"{size}B", f"{2 * size}B")}, {"memory": size, "share": 0.5}):
        alternative = Alternative(vendor=device.vendor, kind=device.kind, partition=device.partition, **fields)
        _, reason = check_worker(alternative, a_worker(devices=(healthy,)))
        assert (reason.code, reason.found) == (ReasonCode.MEMORY, "unknown")
    free = Alternative(vendor=device.vendor, kind=device.kind, partition=device.partition)
    assert check_worker(free, a_worker(devices=(healthy,))) == (True, None)


CALLS = sorted(name for name in dir(pynvml) if name.startswith(("nvmlDeviceGet", "nvmlSystemGet")))
FAILURES = [1, 8, 9, 10, 11, 14, 15, 16, 17, 18, 20, 23, 28, 29, 999]


@given(st.dictionaries(st.sampled_from([*ANSWERS, *CALLS]), st.sampled_from(FAILURES), min_size=1, max_size=4))
def test_nvml(failures):
    base = nvidia.parse(nvidia.read(Nvml({})))
    result = nvidia.parse(nvidia.read(Nvml(failures)))
    assert_no_more_is_offered(base, result)
    assert set(result.users.values()) <= {(7, 8)}
    assert offered(result) or result.problems


@pytest.mark.parametrize("name", ["google/v5e", "google/tpu7x", "xilinx/alveo-u250", "intel/pac-d5005"])
@given(data=st.data())
def test_the_ids_of_the_pci_bus(name, data):
    files = json.loads((FIXTURES / f"{name}.json").read_text())
    folders = sorted({path.rsplit("/", 1)[0] for path in files if path.endswith("/vendor")})
    rows = [
        {"pci": folder.rsplit("/", 1)[1], "class": "0x120000", "node": "/dev/vfio/0", "driver": "xocl"}
        | {key: files.get(f"{folder}/{key}") for key in ("vendor", "device", "subsystem_device")}
        for folder in folders
    ]
    number = data.draw(st.integers(0, len(rows) - 1))
    changed = [dict(row) for row in rows]
    changed[number]["device"] = data.draw(st.sampled_from(["0x00ff", "0x9999", None]))
    parse = (lambda rows: google.parse(rows, {})) if name.startswith("google") else (lambda rows: fpga.parse(rows, []))
    result = parse(changed)
    base = parse(rows)
    assert {device.id for device in result.devices if device.leasable} <= {device.id for device in base.devices}
    assert result.problems or len(result.devices) == len(base.devices)
    if name.startswith("google"):  # nothing counts FPGAs by their numbers
        assert_no_more_is_offered(base, result)
