"""The limits that control groups (cgroup v1 and v2) set for this process."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hetero_airflow.discovery.sources.tools_and_files import read_text


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
