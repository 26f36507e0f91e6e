"""CPU cores and host memory, from psutil, /proc/cpuinfo, /sys and control groups.

The host is one device with the id ``cpu``. Its cores are those that this process may run on (affinity), at most as many
as the CPU quota allows. Its memory is the smallest limit of the control groups. So a container offers its own limits,
not the host's hardware.

``/proc/cpuinfo`` of an AMD host begins with::

    processor       : 0
    vendor_id       : AuthenticAMD
    cpu family      : 25
    model           : 1
    model name      : AMD EPYC 7763 64-Core Processor

On an Arm host it has no model, only the maker (0x48 is HiSilicon)::

    processor       : 0
    BogoMIPS        : 200.00
    CPU implementer : 0x48
    CPU part        : 0xd01
"""

import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.tools_and_files import read_text
from hetero_airflow.discovery.sources.values import to_bytes, to_count, to_ids, to_number, to_text, to_word
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.devices.features import CPU_FLAGS, FLAGS_KEY
from hetero_airflow.model.devices.names import architecture_of

DEVICE_ID = "cpu"

_VENDORS = {
    "GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon",
    "0x41": "arm", "0x48": "hisilicon", "0x4e": "nvidia", "0x50": "ampere", "0x61": "apple", "0xc0": "ampere",
}  # fmt: skip
"""``vendor_id`` on x86, ``CPU implementer`` on Arm → vendor; anything else is ``generic``."""

_NOISE = re.compile(
    r"\((?:r|tm)\)|@.*|\b(?:cpu|processor|intel|amd|hygon)\b|\b(?:[0-9]+|dual|quad|six|eight)-core\b", re.IGNORECASE
)


def probe() -> ProbeResult:
    """The CPU of this host."""
    return parse(read(Path("/")))


def read(root: Path) -> dict[str, Any]:
    """The values of the kernel and psutil; `root` is another folder in tests."""
    memory = psutil.virtual_memory()
    cpus = root / "sys/devices/system/cpu"
    return {
        "cpuinfo": read_text(root / "proc/cpuinfo", limit=16384) or "",
        "machine": platform.machine(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "nodes": {
            folder.name: read_text(folder / "cpulist", limit=65536)
            for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
        },
        "packages": {read_text(path) for path in cpus.glob("cpu[0-9]*/topology/physical_package_id")},
        "physical_cores": psutil.cpu_count(logical=False),
        "online_cores": psutil.cpu_count(),
        "clock_khz": read_text(cpus / "cpu0/cpufreq/cpuinfo_max_freq"),
        "memory_total": memory.total,
        "memory_available": memory.available,
        "memory_limits": memory_limits(root),
        "cpu_quota": cpu_quota(root),
        "load": os.getloadavg()[0],
    }


def parse(facts: Mapping[str, Any]) -> ProbeResult:
    """The one device that these facts describe. Its utilization is the last minute's load per core, at most 1.

    :raises ProbeError: there is no core or no memory
    """
    cpuinfo = _fields(facts.get("cpuinfo"))
    cores = _ordered(facts.get("affinity") or (), facts.get("nodes") or {})
    quota = to_number(facts.get("cpu_quota"))
    usable = cores[: usable_cores(len(cores), quota)]
    total = to_bytes(facts.get("memory_total"))
    if not usable or not total:
        raise ProbeError(
            "the cores and memory of this host",
            found=f"{len(usable)} cores and {total or 0} bytes",
            remedy="Mount /proc and /sys into the container",
        )
    free = to_bytes(facts.get("memory_available"))
    for limit, working_set in facts.get("memory_limits") or ():
        total = min(total, limit)
        free = max(0, min(free, limit - working_set)) if free is not None else None
    load = to_number(facts.get("load"))
    online = to_count(facts.get("online_cores")) or len(cores)
    khz = to_number(facts.get("clock_khz"))
    mhz = khz / 1000 if khz else to_number(cpuinfo.get("cpu mhz"))
    device = Device(
        id=DEVICE_ID,
        vendor=_VENDORS.get(cpuinfo.get("vendor_id") or cpuinfo.get("cpu implementer") or "", "generic"),
        kind="cpu",
        model=_model(cpuinfo.get("model name"), facts.get("machine")),
        index=0,
        memory_bytes=total,
        cores=usable,
        capability=architecture_of(str(facts.get("machine"))) or to_text(facts.get("machine"), limit=64),
        details={
            "sockets": len({p for p in facts.get("packages") or () if p}) or None,
            "numa_nodes": len(facts.get("nodes") or ()) or None,
            "physical_cores": to_count(facts.get("physical_cores")),
            "logical_cores": online,
            "clock_mhz": round(mhz) if mhz else None,
            "cpu_quota": quota,
            FLAGS_KEY: known_flags(cpuinfo),
        },
    )
    utilization = min(1.0, load / online) if load is not None and online else None
    return ProbeResult((device,), (Telemetry(device_id=DEVICE_ID, memory_free_bytes=free, utilization=utilization),))


def read_flags() -> str | None:
    """What `known_flags` finds on this host."""
    return known_flags(_fields(read_text(Path("/proc/cpuinfo"), limit=16384)))


def known_flags(cpuinfo: Mapping[str, str]) -> str | None:
    """Those of `CPU_FLAGS` that the first processor has, in their order; None if the kernel shows no flags.

    >>> known_flags({"flags": "fpu avx512_bf16 sse2"}), known_flags({"features": "fp asimd"}), known_flags({})
    ('avx512_bf16', '', None)
    """
    text = cpuinfo.get("flags") or cpuinfo.get("features")
    return None if text is None else " ".join(flag for flag in CPU_FLAGS if flag in text.split())


def _fields(cpuinfo: object) -> dict[str, str]:
    """The fields of the first processor, with names in lower case."""
    fields: dict[str, str] = {}
    for line in (cpuinfo if isinstance(cpuinfo, str) else "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def _model(name: str | None, machine: object) -> str:
    """A short name such as ``epyc-7763``; the architecture if the kernel names no model.

    >>> _model("Intel(R) Xeon(R) Platinum 8480+", "x86_64"), _model(None, "aarch64")
    ('xeon-platinum-8480+', 'aarch64')
    """
    return to_word(_NOISE.sub(" ", name or ""), fallback=to_word(str(machine).replace("_", "-"), fallback="cpu"))


def _ordered(affinity: Any, nodes: Mapping[str, Any]) -> tuple[int, ...]:
    """The cores by NUMA node, then by number; cores without a node come last."""
    node_of = {
        core: int(name.removeprefix("node"))
        for name, text in nodes.items()
        if name.removeprefix("node").isdecimal()
        for core in to_ids(text)
    }
    return tuple(sorted(set(affinity), key=lambda core: (node_of.get(core, 1 << 16), core)))


class MemoryLimit(NamedTuple):
    """A memory limit of this process or a group above it, in bytes."""

    limit: int
    working_set: int
    """Memory in use, without the file cache that the kernel would drop first."""


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """All memory limits of this process; each group above it may set one."""
    limits = []
    for folder, is_v2 in _folders(root, "memory"):
        limit = _number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        if limit is not None:
            used = _number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")) or 0
            cache = _stat(folder / "memory.stat", "inactive_file" if is_v2 else "total_inactive_file")
            limits.append(MemoryLimit(limit, max(0, used - cache)))
    return limits


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota, in cores; None if there is none."""
    quotas = []
    for folder, is_v2 in _folders(root, "cpu"):
        if is_v2:
            quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        else:
            quota = read_text(folder / "cpu.cfs_quota_us") or ""
            period = read_text(folder / "cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is v2) of this process's groups, from its own up to the root."""
    for line in (read_text(root / "proc/self/cgroup", limit=65536) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, is_v2 = root / "sys/fs/cgroup", True
        elif controller in controllers.split(","):
            base, is_v2 = root / "sys/fs/cgroup" / controller, False
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth]), is_v2


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _stat(path: Path, name: str) -> int:
    for line in (read_text(path, limit=65536) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


def usable_cores(cores: int, quota: float | None) -> int:
    """How many of `cores` a quota of CPU time can keep busy; at least one.

    >>> usable_cores(64, 2.5), usable_cores(64, None), usable_cores(64, 0.5)
    (2, 64, 1)
    """
    return cores if quota is None else max(1, min(cores, math.floor(quota)))
