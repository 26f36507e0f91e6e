"""Finds the processes of leases on this host, and ends those of ended leases."""

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hetero_airflow.agent.protocol import MAX_LEASES
from hetero_airflow.engines.host.held_devices import LocalRunDevices
from hetero_airflow.engines.host.lease_files import (
    CurrentLeases,
    LeaseFile,
    UncheckedLeases,
    current_leases,
    current_process_namespace,
    read_lease_files,
    remove_lease_file,
)
from hetero_airflow.engines.host.processes import signal_pids, worker_processes

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""Minimum time between SIGTERM and SIGKILL."""

ABANDONED_AFTER_S = 3600.0
"""Containers may share the folder of lease files. A file from another one is removed if untouched for so long."""


class LeaseWatch:
    """Watches the leases of one worker; another Airflow on the host has workers with other names.

    :param user: number of the user that runs the worker's tasks; None: the user of this process. If it is another one,
        this process needs CAP_DAC_OVERRIDE, CAP_KILL and CAP_SYS_PTRACE
    :param clock: seconds that only grow
    """

    def __init__(self, worker_id: str, *, user: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker_id, self._user, self._clock = worker_id, user, clock
        self.unchecked = UncheckedLeases(clock)
        self.local_runs = LocalRunDevices(user)
        self._place = current_process_namespace()
        self._files: tuple[Path, ...] = ()
        """The files of leases at the last look."""
        self._ended: set[str] = set()
        """Leases that are over by the server, while they have processes here."""
        self._unknown: frozenset[str] = frozenset()
        """Leases of the last reply that the server has never granted."""
        self._pids: dict[str, list[int]] = {}
        """Lease id → its processes, when they were last listed."""
        self._groups: dict[str, Path] = {}
        """Lease id → its control group."""
        self._signals: dict[str, tuple[float, signal.Signals]] = {}
        """Lease id → time of its SIGTERM, and the last signal that was sent."""

    def live_leases(self) -> frozenset[str]:
        """Ids of the leases with processes here. Ends the processes of leases that are over or have no supervisor.

        A lease counts if its supervisor has not started its process yet. It does not count if its supervisor only has
        to report the end. A lease whose devices must be looked at counts until then. Never blocks: a process that gets
        SIGTERM now gets SIGKILL in a later call.
        """
        files = self._read()
        self._pids = pids = worker_processes(self._worker_id, {file.lease: file.root for file in files.values()})
        if self._user is None:  # another user's files may name any control group
            self._groups = {file.lease: file.group for file in files.values() if file.group is not None}
        orphans = {file.lease for file in files.values() if not file.supervisor.is_running}
        starting = {file.lease for file in files.values() if file.task is None and file.lease not in orphans}
        for path, file in files.items():
            if file.lease in orphans and file.lease not in pids and not file.needs_check:
                log.info("Lease %s is over: its task and its supervisor no longer run.", file.lease)
                self._remove(path, file)
        self._files = tuple(filter(os.path.exists, files))
        self.unchecked.update({path: self._trusted(file) for path, file in files.items()}, pids)
        self._signals = {lease_id: sent for lease_id, sent in self._signals.items() if lease_id in pids}
        self._ended &= pids.keys() | starting
        for lease_id in sorted((orphans | self._ended) & pids.keys()):
            self._stop(lease_id, "Airflow has taken it back" if lease_id in self._ended else "its supervisor is gone")
        live, named = pids.keys() | starting | self.unchecked.ids, {file.lease for file in files.values()}
        return frozenset(sorted(live, key=lambda id_: (id_ not in named, id_))[:MAX_LEASES])

    @property
    def has_files(self) -> bool:
        """Whether a lease had a file at the last look."""
        return bool(self._files)

    def is_file_gone(self) -> bool:
        """Whether one of these files is gone: the lease is over, and its devices can serve the next task."""
        return not all(map(os.path.exists, self._files))

    def current(self) -> CurrentLeases:
        """The runs of this worker and the local runs. Those of another Airflow, and made-up ones, are left out."""
        return current_leases(self._user, self._is_known)

    def note_unknown(self, leases: Collection[str]) -> bool:
        """Note the leases that the server has never granted. Returns whether there is one that it did not name before.

        :param leases: ids
        """
        before, self._unknown = self._unknown, frozenset(leases)
        return not self._unknown <= before

    def _is_known(self, file: LeaseFile) -> bool:
        return bool(file.local_run) or (file.worker == self._worker_id and file.lease not in self._unknown)

    def end(self, leases: Iterable[str]) -> None:
        """End the processes of leases that are over: SIGTERM now, SIGKILL in a later call of `live_leases`."""
        self._ended.update(leases)
        for lease_id in sorted(self._ended & self._pids.keys()):
            self._stop(lease_id, "Airflow has taken it back")

    def _read(self) -> Mapping[Path, LeaseFile]:
        files = read_lease_files(self._user)
        for path, file in list(files.items()):
            if file.place != self._place:
                if self._is_abandoned(path, file):
                    log.warning("The lease file %s is of an earlier start of the host or of a gone container.", path)
                    self._remove(path, file)
                del files[path]
            elif file.worker != self._worker_id:
                del files[path]
            else:
                with suppress(OSError):
                    os.utime(path)  # else a cleaner of temporary files deletes the file of a task that runs for days
        return files

    def _may_signal(self, pid: int) -> bool:
        """Whether a process belongs to the tasks' user. That user writes the lease files, and may name any process."""
        return self._user in (None, _user_of(pid))

    def _trusted(self, file: LeaseFile) -> LeaseFile:
        """A file without the control group if another user wrote it, who may name any."""
        return file if self._user is None else file.model_copy(update={"group": None})

    def _is_abandoned(self, path: Path, file: LeaseFile) -> bool:
        """Whether no process of a file from elsewhere can live. Supervisors and agents touch the files of live ones."""
        if file.place.partition("/")[0] != self._place.partition("/")[0]:
            return True
        try:
            return time.time() - path.stat().st_mtime > ABANDONED_AFTER_S
        except OSError:
            return False

    def _stop(self, lease_id: str, cause: str) -> None:
        now, pids = self._clock(), self._pids[lease_id]
        at, before = self._signals.get(lease_id, (now, None))
        number = signal.SIGTERM if now - at < GRACE_S else signal.SIGKILL
        if number is not before:
            log.warning("Lease %s: %s. Its processes %s get %s.", lease_id, cause, sorted(pids), number.name)
        self._signals[lease_id] = (at, number)
        if number is not before or number is signal.SIGKILL:
            signal_pids([pid for pid in pids if self._may_signal(pid)], number, self._groups.get(lease_id))

    def _remove(self, path: Path, file: LeaseFile) -> None:
        try:
            remove_lease_file(path, self._trusted(file))
        except OSError as error:
            log.warning("The lease file %s can't be removed: %s", path, error)


def _user_of(pid: int) -> int | None:
    """The real user of a process; None if it is gone. The folder in ``/proc`` may belong to root."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)
