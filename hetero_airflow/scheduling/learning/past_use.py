"""The device-time that each DAG used in ended runs, which decays with time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from hetero_airflow.model.estimates import decayed


class PastUse:
    """Adds up the device-time of runs.

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
        """The time to which `device_s` is decayed: the latest end of a run."""

    def add(self, dag_id: str, device_s: Mapping[str, float], ended_at: datetime) -> None:
        """Add a run.

        :param device_s: device class → devices × seconds
        """
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
        device_s: dict[str, dict[str, float]] = {}
        for (dag_id, name), (amount, at) in self._used.items():
            device_s.setdefault(dag_id, {})[name] = decayed(amount, at, self.at)
        return device_s
