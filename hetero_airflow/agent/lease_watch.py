"""Which leases have processes on this host, and the end of those that should have none."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hetero_airflow.agent.protocol import MAX_LEASES
from hetero_airflow.engines.lease_files import LeaseFile, current_process_namespace, lease_folder, read_lease_files
from hetero_airflow.engines.processes import worker_processes

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL, at least."""


class LeaseWatch:
    """Looks at this worker's leases only: another Airflow on the host has workers of its own names.

    :param clock: seconds that only grow
    """

    def __init__(self, worker_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker_id, self._clock = worker_id, clock
        self._place = current_process_namespace()
        self._over: set[str] = set()
        """Leases whose processes the server wants gone."""
        self._pids: dict[str, list[int]] = {}
        """Lease → its processes, at the last look."""
        self._told: dict[str, tuple[float, signal.Signals]] = {}
        """Lease → when its processes were sent SIGTERM, and what they were sent last."""

    def look(self) -> frozenset[str]:
        """Ids of the leases that have processes here; ends those that nobody looks after, or that are over.

        A lease whose supervisor has not yet started its process counts, one whose supervisor has only its end to
        report does not. Never blocks: what gets SIGTERM now gets SIGKILL in a later call.

        :raises HeteroError: the folder of the lease files is another user's
        """
        files = self._read()
        self._pids = pids = worker_processes(self._worker_id, {one.lease: _leader(one) for one in files.values()})
        orphans = {one.lease for one in files.values() if not one.supervisor.runs}
        begin = {one.lease for one in files.values() if one.task is None and one.lease not in orphans}
        for path, one in files.items():
            if one.lease in orphans and one.lease not in pids:
                log.info("Lease %s is over: neither its task nor its supervisor is there any more.", one.lease)
                path.unlink(missing_ok=True)
        self._told = {lease_id: told for lease_id, told in self._told.items() if lease_id in pids}
        self._over &= pids.keys() | begin
        for lease_id in sorted((orphans | self._over) & pids.keys()):
            self._stop(lease_id, "Airflow has taken it back" if lease_id in self._over else "its supervisor is gone")
        return frozenset(sorted(pids.keys() | begin)[:MAX_LEASES])

    def end(self, leases: Iterable[str]) -> None:
        """These are over, says the server: what is left of them gets SIGTERM now, and SIGKILL in a later `look`."""
        self._over.update(leases)
        for lease_id in sorted(self._over & self._pids.keys()):
            self._stop(lease_id, "Airflow has taken it back")

    def _read(self) -> Mapping[Path, LeaseFile]:
        try:
            files = read_lease_files(lease_folder())
        except OSError as error:  # then no task could write one either
            log.warning("This host's lease files can't be read: %s", error)
            return {}
        for path, one in list(files.items()):
            if one.place != self._place:
                log.warning("The lease file %s is of another container, or from before the host started.", path)
                path.unlink(missing_ok=True)
                del files[path]
            elif one.worker != self._worker_id:
                del files[path]
            else:
                with suppress(OSError):
                    os.utime(path)  # else what tidies up temporary files takes it from a task of many days
        return files

    def _stop(self, lease_id: str, cause: str) -> None:
        now, pids = self._clock(), self._pids[lease_id]
        at, before = self._told.get(lease_id, (now, None))
        number = signal.SIGTERM if now - at < GRACE_S else signal.SIGKILL
        if number is not before:
            log.warning("Lease %s: %s. Its processes %s get %s.", lease_id, cause, sorted(pids), number.name)
        self._told[lease_id] = (at, number)
        for pid in pids if number is not before or number is signal.SIGKILL else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _leader(file: LeaseFile) -> int | None:
    return None if file.task is None or file.task.is_reused else file.task.pid
