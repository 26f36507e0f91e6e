"""The processes of a lease on this host: finds them, and ends those that outlive their task. Linux only.

A task's process leads a process group, which Airflow's supervisor sets up. A process that it starts with exec, such as
a Bash operator's, may leave the group, but it has the lease in its environment.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from hetero_airflow.settings import LEASE_VARIABLE

_PROC = Path("/proc")
_MARKER = f'{LEASE_VARIABLE}={{"id":"'.encode()
_CLOCK_TOLERANCE_S = 5.0
"""Largest difference between two clocks of one host, or of a host and a database."""


GroupLeader = tuple[int | None, datetime | None]
"""Pid of a task's own process, and Airflow's last heartbeat from it. A younger process with that pid is another one."""


def lease_processes(leases: Mapping[str, GroupLeader]) -> dict[str, list[int]]:
    """Lease id → pids of its live processes, for those leases that have any. Reads ``/proc`` once."""
    groups = {pid: id_ for id_, (pid, seen) in leases.items() if pid is not None and not _is_reused(pid, seen)}
    return _processes(groups, leases)


def worker_processes(worker_id: str, leases: Mapping[str, int | None]) -> dict[str, list[int]]:
    """Lease id → pids of its live processes, for all leases on that worker. Reads ``/proc`` once.

    :param leases: known leases: id → pid of the task's own process, None if it is gone
    """
    return _processes({pid: id_ for id_, pid in leases.items() if pid is not None}, None, worker_id)


def _processes(
    groups: Mapping[int, str], leases: Container[str] | None, worker_id: str | None = None
) -> dict[str, list[int]]:
    pids_of: dict[str, list[int]] = {}
    for pid in _pids():
        id_ = groups.get(_group(pid)) or _lease_in_environment(pid, worker_id)
        if id_ is not None and (leases is None or id_ in leases) and not _is_zombie(pid):
            pids_of.setdefault(id_, []).append(pid)
    return pids_of


def signal_processes(lease_id: str, leader: GroupLeader, number: int) -> list[int]:
    """Send a signal to the processes of a lease. Returns their pids."""
    pids = lease_processes({lease_id: leader}).get(lease_id, [])
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return pids


def end_processes(lease_id: str, leader: GroupLeader, grace_s: float) -> list[int]:
    """Stop the remaining processes of a lease: SIGTERM, then SIGKILL after the grace time. Blocks that long at most.

    Returns the pids that it found.
    """
    pids = signal_processes(lease_id, leader, signal.SIGTERM)
    end = time.monotonic() + grace_s
    left = pids
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = lease_processes({lease_id: leader}).get(lease_id, [])
    if left:
        signal_processes(lease_id, leader, signal.SIGKILL)
    return pids


def _pids() -> Iterator[int]:
    own_pid = os.getpid()
    for entry in os.listdir(_PROC):
        if entry.isdigit() and int(entry) != own_pid:
            yield int(entry)


def _is_reused(pid: int, seen_at: datetime | None) -> bool:
    if seen_at is None:
        return False
    try:
        return psutil.Process(pid).create_time() > seen_at.timestamp() + _CLOCK_TOLERANCE_S
    except psutil.Error:
        return False


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return 0


def _lease_in_environment(pid: int, worker_id: str | None) -> str | None:
    """The id of the lease in a process's initial environment. None if it has none, or one of another worker."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
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


def _is_zombie(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return True
