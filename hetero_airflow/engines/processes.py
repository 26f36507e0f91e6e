"""The processes of a lease on this host: finds them, and ends those that outlive their task. Linux only.

A task's process leads a process group (Airflow's supervisor sees to that), and what it starts with
exec carries the lease in its environment even when it has left the group, as Bash operators do.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from hetero_airflow.settings import LEASE_VARIABLE

_PROC = Path("/proc")
_MARKER = f'{LEASE_VARIABLE}={{"id":"'.encode()
_CLOCK_TOLERANCE_S = 5.0
"""Between what two clocks of one host, and of a database, may say of one moment."""


GroupLeader = tuple[int | None, datetime | None]
"""Pid of a task's own process, and when Airflow last knew it there; a process of that pid that is younger is not it."""


def lease_processes(leases: Mapping[str, GroupLeader]) -> dict[str, list[int]]:
    """Lease id → pids of its live processes, for those leases that have any. Reads ``/proc`` once."""
    groups = {pid: id_ for id_, (pid, seen) in leases.items() if pid is not None and not _is_reused(pid, seen)}
    found: dict[str, list[int]] = {}
    for pid in _pids():
        id_ = groups.get(_group(pid)) or _marked_lease(pid)
        if id_ is not None and id_ in leases and not _is_zombie(pid):
            found.setdefault(id_, []).append(pid)
    return found


def worker_processes(worker_id: str, leases: Mapping[str, int | None]) -> dict[str, list[int]]:
    """Lease id → pids of its live processes, of all leases on that worker. Reads ``/proc`` once.

    :param leases: what is known of them: lease id → pid of the task's own process, None where it is not there any more
    """
    groups = {pid: id_ for id_, pid in leases.items() if pid is not None}
    found: dict[str, list[int]] = {}
    for pid in _pids():
        id_ = groups.get(_group(pid)) or _marked_lease(pid, worker_id)
        if id_ is not None and not _is_zombie(pid):
            found.setdefault(id_, []).append(pid)
    return found


def signal_processes(lease_id: str, leader: GroupLeader, number: int) -> list[int]:
    """Send a signal to the processes of a lease; their pids."""
    found = lease_processes({lease_id: leader}).get(lease_id, [])
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return found


def end_processes(lease_id: str, leader: GroupLeader, grace_s: float) -> list[int]:
    """Stop what is left of a lease: SIGTERM, and SIGKILL after the grace time. Blocks for it at most.

    Returns the pids that were there.
    """
    found = signal_processes(lease_id, leader, signal.SIGTERM)
    end = time.monotonic() + grace_s
    left = found
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = lease_processes({lease_id: leader}).get(lease_id, [])
    if left:
        signal_processes(lease_id, leader, signal.SIGKILL)
    return found


def _pids() -> Iterator[int]:
    own = os.getpid()
    for entry in os.listdir(_PROC):
        if entry.isdigit() and int(entry) != own:
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


def _marked_lease(pid: int, worker_id: str | None = None) -> str | None:
    """The id of the lease in the environment that the process was started with, if it is on that worker."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    _, found, rest = environment.partition(_MARKER)
    if not found or (worker_id is not None and _worker_in(_MARKER[-7:] + rest.partition(b"\0")[0]) != worker_id):
        return None
    return rest.partition(b'"')[0].decode(errors="replace")


def _worker_in(lease: bytes) -> object:
    """The worker of a lease as its variable has it."""
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
