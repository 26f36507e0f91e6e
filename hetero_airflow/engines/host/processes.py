"""The processes of a lease on this host: finds them, and ends those that outlive their task. Linux only.

A process belongs to a lease if one of these is true, or if one of its ancestors does:

- It is in the process group of the task. Airflow's supervisor sets that up.
- It has the lease in its environment, which anybody can copy (`named_processes`). A program that a task starts has it,
  unless it begins with an empty environment.
- It is in the control group of the lease, where there is one (`cgroups`).
- The supervisor saw it below the task, and wrote it into the lease file.
- Its ancestor is the supervisor, which adopts what lost its parent (``PR_SET_CHILD_SUBREAPER``).
"""

import json
import os
import signal
import time
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import BaseModel, ConfigDict

from hetero_airflow.engines.host.cgroups import group_pids, kill_group
from hetero_airflow.settings import LEASE_VARIABLE

_PROC = Path("/proc")
_MARKER = f'{LEASE_VARIABLE}={{"id":"'.encode()
_CLOCK_TOLERANCE_S = 5.0
"""Largest difference between two clocks of one host, or of a host and a database."""

_KILL_S = 2.0
"""How long a process may take to end after SIGKILL. One that waits for a driver in the kernel may never end."""

_POLL_S = 0.02


class ProcessIdentity(BaseModel):
    """A process. A later one with the same pid is not equal."""

    model_config = ConfigDict(frozen=True)

    pid: int
    ticks: int
    """Start time in the kernel's clock ticks since boot. Changes of the time of day do not affect it."""

    @property
    def is_running(self) -> bool:
        """Whether this process still runs. A zombie does not."""
        return start_ticks(self.pid) == self.ticks

    @property
    def is_reused(self) -> bool:
        """Whether another process has the pid now."""
        return start_ticks(self.pid) not in (self.ticks, None)


def process_identity(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None if there is none."""
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessIdentity(pid=pid, ticks=ticks)


@dataclass(frozen=True, slots=True)
class LeaseRoot:
    """Where the search for the processes of a lease begins."""

    leader: int | None = None
    """Pid of the task's own process, which leads its group; None if it is unknown or another process has the pid."""
    seen_at: datetime | None = None
    """Airflow's last heartbeat from the leader. A younger process with that pid is another one."""
    members: Collection[ProcessIdentity] = ()
    """Processes that were seen below the task, outside of its group."""
    supervisor: int | None = None
    """The process that adopts orphans of the task; None if it is gone, or has ended the run."""
    since_ticks: int = 0
    """Children of the supervisor that are older do not belong to the lease."""
    group: Path | None = None
    """Its control group."""


class _Stat(NamedTuple):
    """A line of ``/proc/PID/stat``."""

    state: bytes
    parent: int
    group: int
    ticks: int

    @property
    def is_over(self) -> bool:
        return self.state in (b"Z", b"X")


def lease_processes(leases: Mapping[str, LeaseRoot]) -> dict[str, list[int]]:
    """Lease id → pids of its live processes, for those leases that have any. Reads ``/proc`` once."""
    return _processes(leases, leases)


def named_processes(
    leases: Mapping[str, LeaseRoot], orphaned: Collection[str]
) -> tuple[dict[int, str], dict[int, str]]:
    """Pid → lease of the live processes that belong to these leases for certain, and of those that only name one.

    The former belong to it by their ancestry, group, control group, or a note of their supervisor. The latter have, or
    had from an ancestor, the lease in their environment. Reads ``/proc`` once.

    :param orphaned: the leases that a process may name; without any, no environment is read
    """
    table = dict(_table())
    certain = _members(table, _claims(leases, table), _adopters(leases))
    others = table.keys() - certain if orphaned else ()
    names = {pid: id_ for pid in others if (id_ := _lease_in_environment(pid, None)) is not None and id_ in orphaned}
    named = _members(table, names, {})
    return certain, {pid: id_ for pid, id_ in named.items() if pid not in certain}


def worker_processes(worker_id: str, leases: Mapping[str, LeaseRoot]) -> dict[str, list[int]]:
    """Lease id → pids of its live processes, for these and all other leases on that worker. Reads ``/proc`` once."""
    return _processes(leases, None, worker_id)


def _processes(
    roots: Mapping[str, LeaseRoot], leases: Container[str] | None, worker_id: str | None = None
) -> dict[str, list[int]]:
    table = dict(_table())
    claims = {pid: id_ for pid in table if (id_ := _lease_in_environment(pid, worker_id)) is not None}
    claims |= _claims(roots, table)
    pids_of: dict[str, list[int]] = {}
    for pid, id_ in _members(table, claims, _adopters(roots)).items():
        if leases is None or id_ in leases:
            pids_of.setdefault(id_, []).append(pid)
    return pids_of


def _adopters(roots: Mapping[str, LeaseRoot]) -> dict[int, tuple[str, int]]:
    """Pid of a supervisor → its lease, and the age of its children that belong to it."""
    return {root.supervisor: (id_, root.since_ticks) for id_, root in roots.items() if root.supervisor is not None}


def _members(
    table: Mapping[int, _Stat], claims: Mapping[int, str], adopters: Mapping[int, tuple[str, int]]
) -> dict[int, str]:
    """Pid → lease of the live processes that have one, by these claims."""
    leases = {pid: _lease_of(pid, table, claims, adopters) for pid, status in table.items() if not status.is_over}
    return {pid: id_ for pid, id_ in leases.items() if id_ is not None}


def _claims(roots: Mapping[str, LeaseRoot], table: Mapping[int, _Stat]) -> dict[int, str]:
    """Pid → lease, of the processes that a root names itself."""
    groups = {
        root.leader: id_
        for id_, root in roots.items()
        if root.leader is not None and not _is_younger(root.leader, root.seen_at)
    }
    claims = {pid: groups[status.group] for pid, status in table.items() if status.group in groups}
    for id_, root in roots.items():
        claims |= {
            process.pid: id_
            for process in root.members
            if process.pid in table and table[process.pid].ticks == process.ticks
        }
        claims |= dict.fromkeys(group_pids(root.group) if root.group is not None else (), id_)
    return claims


def _lease_of(
    pid: int, table: Mapping[int, _Stat], claims: Mapping[int, str], adopters: Mapping[int, tuple[str, int]]
) -> str | None:
    """The lease of a process or of its nearest ancestor that has one."""
    own_pid = os.getpid()
    if pid in adopters or pid == own_pid:
        return None
    while pid in table:
        if pid in claims:
            return claims[pid]
        parent = table[pid].parent
        if parent in adopters:
            id_, since_ticks = adopters[parent]
            return id_ if table[pid].ticks >= since_ticks else None
        if parent == own_pid:
            return None
        pid = parent
    return None


def signal_processes(lease_id: str, root: LeaseRoot, number: int) -> list[int]:
    """Send a signal to the processes of a lease. Returns their pids."""
    pids = lease_processes({lease_id: root}).get(lease_id, [])
    signal_pids(pids, number, root.group)
    return pids


def signal_pids(pids: Collection[int], number: int, group: Path | None = None) -> None:
    """Send a signal to processes. Those that belong to another user, or have ended, are left out.

    :param group: their control group, in which SIGKILL ends all
    """
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    if number == signal.SIGKILL and group is not None:
        kill_group(group)


def end_processes(lease_id: str, root: LeaseRoot, grace_s: float) -> tuple[list[int], list[int]]:
    """Stop the remaining processes of a lease: SIGTERM, then SIGKILL after the grace time. Blocks that long at most.

    Returns the pids that it found, and those of them that it could not end.
    """
    last_signals: dict[ProcessIdentity, int] = {}
    """Process → the last signal that it got."""
    kill_at = time.monotonic() + grace_s
    while pids := lease_processes({lease_id: root}).get(lease_id, []):
        now = time.monotonic()
        number = signal.SIGTERM if now < kill_at else signal.SIGKILL
        processes = {process for pid in pids if (process := process_identity(pid)) is not None}
        unsignalled = {process for process in processes if last_signals.get(process) != number}
        if now >= kill_at + _KILL_S:
            return sorted({process.pid for process in last_signals}), sorted(process.pid for process in processes)
        signal_pids([process.pid for process in unsignalled], number, root.group)
        last_signals |= dict.fromkeys(unsignalled, number)
        _wait_for_end(processes, kill_at if number == signal.SIGTERM else kill_at + _KILL_S)
    return sorted({process.pid for process in last_signals}), []


def _wait_for_end(processes: Collection[ProcessIdentity], until: float) -> None:
    while time.monotonic() < until and any(process.is_running for process in processes):
        time.sleep(_POLL_S)


def descendants(pid: int) -> Iterator[int]:
    """The processes below a process, from the kernel's lists of children; zombies too. Reads no other process."""
    for children in (_PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from descendants(child)


def process_group(pid: int) -> int:
    """The process group of a process; 0 if it is gone or belongs to another user."""
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return 0


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks; None if it is gone or a zombie."""
    status = _stat(pid)
    return None if status is None or status.is_over else status.ticks


def current_ticks() -> int:
    """The start time that a process gets which starts now."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent has not waited for it yet."""
    status = _stat(pid)
    return status is not None and status.is_over


def _table() -> Iterator[tuple[int, _Stat]]:
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (status := _stat(int(entry))) is not None:
            yield int(entry), status


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return _Stat(fields[0], int(fields[1]), int(fields[2]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _is_younger(pid: int, seen_at: datetime | None) -> bool:
    if seen_at is None:
        return False
    try:
        return psutil.Process(pid).create_time() > seen_at.timestamp() + _CLOCK_TOLERANCE_S
    except psutil.Error:
        return False


def _lease_in_environment(pid: int, worker_id: str | None) -> str | None:
    """The id of the lease in a process's initial environment. None if it has none, or one of another worker."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return None
    _, marker, rest = environment.partition(_MARKER)
    if not marker or (worker_id is not None and _worker_in(_MARKER[-7:] + rest.partition(b"\0")[0]) != worker_id):
        return None
    return rest.partition(b'"')[0].decode(errors="replace")


def _worker_in(lease: bytes) -> object:
    """The worker of a lease in the form of its environment variable."""
    try:
        value = json.loads(lease)
    except ValueError:
        return None
    return value.get("worker") if isinstance(value, dict) else None
