"""What DAGs have held of devices in runs that have ended, the less of it the longer ago. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from hetero_airflow.model.estimates import decayed


class PastUse:
    """Adds up runs as they end.

    >>> from datetime import timedelta
    >>> from hetero_airflow.testing import EPOCH
    >>> past = PastUse()
    >>> past.add("dag", {"nvidia/v100": 100.0}, EPOCH)
    >>> past.add("dag", {"nvidia/v100": 100.0}, EPOCH + timedelta(days=1))
    >>> past.device_s()
    {'dag': {'nvidia/v100': 150.0}}
    """

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], tuple[float, datetime]] = {}
        self.at: datetime | None = None
        """As of when `device_s` counts: the latest end."""

    def add(self, dag_id: str, device_s: Mapping[str, float], ended_at: datetime) -> None:
        """Take in a run: device class → devices × seconds that it held them."""
        self.at = ended_at if self.at is None else max(self.at, ended_at)
        for name, amount in device_s.items():
            before, at = self._used.get((dag_id, name), (0.0, ended_at))
            latest = max(at, ended_at)
            total = decayed(before, at, latest) + decayed(amount, ended_at, latest)
            self._used[dag_id, name] = (total, latest)

    def device_s(self) -> dict[str, dict[str, float]]:
        """DAG id → device class → device-seconds, decayed until `at`."""
        if self.at is None:
            return {}
        told: dict[str, dict[str, float]] = {}
        for (dag_id, name), (amount, at) in self._used.items():
            told.setdefault(dag_id, {})[name] = decayed(amount, at, self.at)
        return told
