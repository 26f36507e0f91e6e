"""The leases whose runs are over, and whose devices must be looked at before others get them."""

import logging
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path

from hetero_airflow.engines.lease_files import LeaseFile, remove_lease_file

log = logging.getLogger(__name__)

_SUPERVISOR_S = 10.0
"""How long a supervisor may take to end a run and to look at its devices itself."""


class UncheckedLeases:
    """Remembers since when each of them is known here.

    :param clock: as that of the discovery which looks at the devices; seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Path, LeaseFile]] = {}

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the leases."""
        return frozenset(self._known)

    @property
    def is_look_due(self) -> bool:
        """Whether a look at the devices is necessary: their supervisor has none, is gone, or takes long to look."""
        return any(
            file.is_unchecked or not file.supervisor.is_running or self._clock() - known_at >= _SUPERVISOR_S
            for known_at, _, file in self._known.values()
        )

    def update(self, files: Mapping[Path, LeaseFile], used: Container[str]) -> None:
        """Take over the current lease files.

        :param used: leases that still have processes
        """
        now, first_seen = self._clock(), self._known
        self._known = {
            file.lease: (first_seen[file.lease][0] if file.lease in first_seen else now, path, file)
            for path, file in files.items()
            if file.needs_check and file.lease not in used
        }

    def note_checked(self, since: float) -> None:
        """Forget the leases whose devices were looked at, and remove their files: nothing of them is left.

        :param since: when the look began whose result is recorded
        """
        for lease_id, (known_at, path, file) in list(self._known.items()):
            if known_at <= since:
                log.info("Lease %s is over: its processes are gone, and its devices were looked at.", lease_id)
                try:
                    remove_lease_file(path, file)
                except OSError as error:
                    log.warning("The lease file %s can't be removed: %s", path, error)
                    continue
                del self._known[lease_id]
