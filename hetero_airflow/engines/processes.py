"""The processes of a lease on this host: finds them, and ends those that outlive their task. Linux only.

A task's process leads a process group (Airflow's supervisor sees to that), and what it starts with
exec carries the lease in its environment even when it has left the group, as Bash operators do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from hetero_airflow.settings import LEASE_VARIABLE

_PROC = Path("/proc")
_START_SLACK_S = 5.0
"""Between the fork of a task's process and the start time that Airflow notes for it."""


def lease_processes(lease_id: str, leader: int | None, started_at: datetime | None = None) -> list[int]:
    """Pids of the live processes of a lease.

    `leader` is the pid of the task's process, `started_at` when it was started: a process of that
    pid that is younger is somebody else's.
    """
    group = leader if leader is not None and not _is_reused(leader, started_at) else None
    marker = f'{LEASE_VARIABLE}={{"id":"{lease_id}"'.encode()
    return [pid for pid in _pids() if _is_in_group(pid, group) or _has_in_environment(pid, marker)]


def signal_processes(lease_id: str, leader: int | None, number: int, started_at: datetime | None = None) -> list[int]:
    """Send a signal to the processes of a lease; their pids."""
    found = lease_processes(lease_id, leader, started_at)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return found


def end_processes(lease_id: str, leader: int | None, grace_s: float) -> list[int]:
    """Stop what is left of a lease: SIGTERM, and SIGKILL after the grace time. Blocks for it at most.

    Returns the pids that were there.
    """
    found = signal_processes(lease_id, leader, signal.SIGTERM)
    end = time.monotonic() + grace_s
    left = found
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = lease_processes(lease_id, leader)
    if left:
        signal_processes(lease_id, leader, signal.SIGKILL)
    return found


def _pids() -> Iterator[int]:
    own = os.getpid()
    for entry in os.listdir(_PROC):
        if entry.isdigit() and int(entry) != own:
            yield int(entry)


def _is_reused(pid: int, started_at: datetime | None) -> bool:
    if started_at is None:
        return False
    try:
        return psutil.Process(pid).create_time() > started_at.timestamp() + _START_SLACK_S
    except psutil.Error:
        return False


def _is_in_group(pid: int, group: int | None) -> bool:
    if group is None:
        return False
    try:
        return os.getpgid(pid) == group and not _is_zombie(pid)
    except (ProcessLookupError, PermissionError):
        return False


def _has_in_environment(pid: int, marker: bytes) -> bool:
    try:
        return marker in (_PROC / str(pid) / "environ").read_bytes() and not _is_zombie(pid)
    except OSError:
        return False


def _is_zombie(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return True
