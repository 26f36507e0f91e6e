"""Warns when another worker reports a device of this host too."""

import logging

from hetero_airflow.model.devices.identity import contested_devices, contested_text
from hetero_airflow.model.snapshot import Snapshot

log = logging.getLogger(__name__)


class ContestedDeviceLog:
    """Logs each contested device of one worker once.

    :param worker_id: this host's worker
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._logged: frozenset[str] = frozenset()

    def write(self, snapshot: Snapshot) -> None:
        """Log those that are new since the last call."""
        contested = [reports for reports in contested_devices(snapshot.workers) if self._worker_id in dict(reports)]
        texts = [contested_text(reports) for reports in contested]
        for text in texts:
            if text not in self._logged:
                log.warning(text)
        self._logged = frozenset(texts)
