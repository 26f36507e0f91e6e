"""The processes of one run, as its supervisor sees them: it adopts those that lost their parents, and ends all of them.

A process can leave the process group of its task (``setsid``), its parent (a double fork) and its environment
(``env -i``). It can't leave its supervisor, to which the kernel gives it as a child (``PR_SET_CHILD_SUBREAPER``), nor
the control group of the lease, where one can be created. If the supervisor is killed, the lease file still names the
processes that it saw, and the group.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from airflow.sdk.configuration import conf

from hetero_airflow.contract.task_lease import TaskLease, checked_devices, lease_claims
from hetero_airflow.discovery.device_users import lease_users
from hetero_airflow.discovery.used_devices import foreign_users, parse_processes
from hetero_airflow.engines.host.cgroups import create_group, join_group
from hetero_airflow.engines.host.held_devices import check_no_local_run
from hetero_airflow.engines.host.lease_files import LeaseFile, LeaseFileWriter, current_leases, recorded_lease
from hetero_airflow.engines.host.processes import (
    LeaseRoot,
    current_ticks,
    descendants,
    end_processes,
    is_zombie,
    process_group,
    process_identity,
)
from hetero_airflow.settings import SECTION, default

_LIBC = ctypes.CDLL(None)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37  # <linux/prctl.h>

_GRACE_S = 5.0
"""The time between SIGTERM and SIGKILL for processes that outlive their task."""

_LOOK_AGAIN_S = 1.0

_LINGER_S = 1.0
"""How long the driver may list a process that has ended."""

_CHECK_S = 20.0
"""How long the run waits until its agent, or the scheduler on its own host, has looked at the devices. It waits so that
no engine reports the end before. An agent that needs longer counts as lost."""

_POLL_S = 0.1


class RunProcesses:
    """The processes of the run of one lease.

    :param note: the lease file, with the control group that the task's process has to join
    :param logger: the log of the task; None if it has none
    """

    def __init__(self, lease: TaskLease, note: LeaseFileWriter, logger: Any) -> None:
        self.group = note.group
        self._lease, self._note, self._logger = lease, note, logger
        self._root, self._since_ticks = LeaseRoot(group=self.group), current_ticks()
        self._zombies: frozenset[int] = frozenset()
        self._has_ended = False
        self._unended: list[int] = []
        """The processes that could not be ended at the last try."""

    def begin(self, pid: int, control: Path | None = None) -> None:
        """Note that the task's process has started, and the folder that it shares with its supervisor, if any."""
        self._root = LeaseRoot(pid, None, (), os.getpid(), self._since_ticks, self.group)
        self._note.begin(pid, control)

    def check(self) -> None:
        """Note which processes are outside of the task's group, and wait for orphans that have ended. Never blocks."""
        below = [pid for pid in descendants(os.getpid()) if process_group(pid) != self._root.leader]
        members = {process for pid in below if (process := process_identity(pid)) is not None}
        ordered = tuple(
            sorted(
                (process for process in members if process.ticks >= self._root.since_ticks),
                key=lambda process: (process.ticks, process.pid),
            )
        )
        self._note.update(members=ordered)
        self._reap()

    def end(self) -> None:
        """End what is left of the run after its task. Blocks for the grace time at most; a second call does nothing."""
        if self._has_ended or self._root.leader is None:
            return
        ended, unended = end_processes(self._lease.id, self._root, _GRACE_S)
        if ended and not self._unended:
            self._warn("Processes outlived the task and were stopped, to free its devices", ended)
        if unended and unended != self._unended:
            self._warn("Processes of the task can't be ended. Its devices stay leased until they are gone", unended)
        self._has_ended, self._unended = not unended, unended
        self._reap(has_ended=True)
        members = tuple(process for pid in unended if (process := process_identity(pid)) is not None)
        is_checked = bool(unended) or self._is_checked()
        self._note.update(is_over=not unended and is_checked, is_unchecked=not is_checked, members=members)

    def close(self) -> None:
        """End the run. Blocks while processes of it are left that can't be ended."""
        self.end()
        while self._root.leader is not None and not self._has_ended:
            time.sleep(_LOOK_AGAIN_S)
            self.end()
        until = time.monotonic() + _CHECK_S
        while self._note.is_unchecked and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _is_checked(self) -> bool:
        """Whether the devices need no look of an agent or a scheduler. None looks at those of a local run."""
        if self._is_unused():
            return True
        if self._lease.is_local_run and self._logger:
            self._logger.warning("Local run: it is not certain that no other process uses the devices of the task")
        return self._lease.is_local_run

    def _is_unused(self) -> bool:
        """Whether no process uses the devices any more. One that just ended may be listed for a moment."""
        lease, until = self._lease, time.monotonic() + _LINGER_S
        while devices := checked_devices(lease):
            users = lease_users(lease.vendor, devices, lease.nodes)
            if users is None:
                return False
            others = current_leases(is_known=self._is_other)
            foreign = foreign_users(users, others.include, _allowed_processes())
            if not foreign:
                return True
            if time.monotonic() >= until:
                pids = sorted({user.pid for users in foreign.values() for user in users})
                self._warn("Other processes use the devices of the task. This host decides about them", pids)
                return False
            time.sleep(_POLL_S)
        return True

    def _is_other(self, file: LeaseFile) -> bool:
        """Whether a file is that of another lease which this host knows."""
        is_known = self._lease.is_local_run or bool(file.local_run) or file.worker == self._lease.worker
        return is_known and file.lease != self._lease.id

    def _warn(self, text: str, pids: list[int]) -> None:
        if self._logger:
            self._logger.warning(text, pids=pids)

    def _reap(self, *, has_ended: bool = False) -> None:
        """Wait for adopted processes that have ended, so that they do not pile up.

        A child of the supervisor's own code is not taken from it: that code waits for it long before the second look.
        """
        children = (pid for pid in descendants(os.getpid()) if pid != self._root.leader and is_zombie(pid))
        zombies = frozenset(children)
        for pid in zombies if has_ended else zombies & self._zombies:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._zombies = zombies


def _allowed_processes() -> frozenset[str]:
    text = conf.get(SECTION, "allowed_device_processes", fallback=default("allowed_device_processes"))
    return parse_processes(text)


@contextmanager
def contained_run(lease: TaskLease, logger: Any) -> Iterator[RunProcesses]:
    """Within the context the lease is recorded, and its run is contained; see `contained`.

    :raises HeteroError: the lease can't be recorded, or a local run holds one of its devices
    """
    claims = lease_claims(lease)
    with recorded_lease(lease.id, lease.worker, checked_devices(lease), create_group, claims=claims) as note:
        check_no_local_run(lease.id, claims)
        with contained(lease, note, logger) as run:
            yield run


@contextmanager
def contained(lease: TaskLease, note: LeaseFileWriter, logger: Any) -> Iterator[RunProcesses]:
    """Within the context, no process of the lease's run can get away; when it ends, none is left.

    :param note: the lease file
    """
    was_adopter = ctypes.c_int(0)
    _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was_adopter))
    run = RunProcesses(lease, note, logger)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield run
    finally:
        run.close()
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, was_adopter.value)


def enter_run(supervisor: int, group: Path | None) -> None:
    """Called by the task's process before anything else: it dies with its supervisor, and joins the control group."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os.kill(os.getpid(), signal.SIGKILL)
    if group is not None:
        with suppress(OSError):
            join_group(group)
