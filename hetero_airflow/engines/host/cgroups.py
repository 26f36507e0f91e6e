"""A control group (cgroup v2) for the processes of a lease: none leaves it by a fork, a new session or another parent.

It is created below the group of this process, if that is writable: a service of systemd with ``Delegate=yes``, or root
outside a container. The kernel ends all its processes at once through ``cgroup.kill`` (Linux 5.14).
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

from hetero_airflow.model.device import UNCOVERED_KEY
from hetero_airflow.model.worker import Worker

_PREFIX = "hetero-lease-"
_MAX_NAME = 200


def current_group() -> Path | None:
    """The folder of this process's group of version 2; None if no such hierarchy is mounted here."""
    try:
        mount = _mount_of_groups()
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in groups if line.startswith("0::/")), None)
    if path is None or mount is None:
        return None
    top, mount_point = mount
    inside = os.path.relpath(path, top)
    return None if inside.startswith("..") else Path(mount_point) / inside


@cache
def _mount_of_groups() -> tuple[str, str] | None:
    """The group at the top of the mounted hierarchy, and the mount point. A host has many mounts, so read them once."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            top, mount_point = fields.split()[3:5]
            return top, mount_point
    return None


def create_group(lease_id: str) -> Path | None:
    """A new group for a lease; None where none can be created or none could be ended."""
    above = current_group()
    if above is None:
        return None
    group = above / f"{_PREFIX}{quote(lease_id, safe='')}"[:_MAX_NAME]
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        return None
    if os.access(group / "cgroup.kill", os.W_OK) and os.access(above / "cgroup.procs", os.W_OK):
        return group
    remove_group(group)
    return None


def can_create_groups() -> bool:
    """Whether `create_group` gives groups to the processes of this user here."""
    group = create_group(f"try-{os.getpid()}")
    if group is not None:
        remove_group(group)
    return group is not None


def covered(worker: Worker) -> Worker:
    """The worker; if tasks get control groups here, no device has processes that nobody sees."""
    if not any(device.details.get(UNCOVERED_KEY) for device in worker.devices) or not can_create_groups():
        return worker
    devices = tuple(
        device.model_copy(
            update={"details": {key: device.details[key] for key in device.details if key != UNCOVERED_KEY}}
        )
        for device in worker.devices
    )
    return worker.model_copy(update={"devices": devices})


def join_group(group: Path) -> None:
    """Move this process into a group. Its children start there.

    :raises OSError: it can't be moved
    """
    (group / "cgroup.procs").write_text("0")


def group_pids(group: Path) -> list[int]:
    """The processes in a group; empty if it does not exist."""
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def kill_group(group: Path) -> None:
    """Send SIGKILL to all processes in a group, and to those that they start at this moment."""
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")


def remove_group(group: Path) -> None:
    """Remove a group. One that still has processes stays."""
    with suppress(OSError):
        group.rmdir()


def oom_kills(before: int | None = 0) -> int | None:
    """How many processes in the cgroup of this process the kernel has killed because memory ran out; None if unknown.

    Read from ``memory.events`` of cgroup v2, which has lines such as ``oom_kill 3``.

    :param before: what an earlier call returned; those are not counted
    """
    group = current_group()
    if group is None or before is None:
        return None
    with suppress(OSError, ValueError):
        for line in (group / "memory.events").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count) - before
    return None
