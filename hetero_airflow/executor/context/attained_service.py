"""What requests were served before they were taken off their devices, so that the queue knows them when they come back.

In memory: after a restart of the scheduler, who comes back counts as new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hetero_airflow.model.device import device_class
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.worker import Worker


@dataclass(slots=True)
class ServiceRecord:
    """One request, from its first placement to its end."""

    submitted_at: datetime
    """For the first time."""
    served: dict[str, float] = field(default_factory=dict)
    """Device class → seconds for which it held its devices."""


class AttainedService:
    """The requests that hold devices, or held some and are to go on."""

    def __init__(self) -> None:
        self._stays: dict[str, ServiceRecord] = {}

    def begin(self, request_id: str, submitted_at: datetime) -> None:
        """A request got devices."""
        self._stays.setdefault(request_id, ServiceRecord(submitted_at))

    def end(self, lease: Lease, worker: Worker | None, end: RunEnd | None, now: datetime) -> None:
        """A lease has ended: what was served is kept where the request goes on later."""
        stay = self._stays.get(lease.request_id)
        if stay is None:
            return
        if end not in (RunEnd.PAUSED, None):
            del self._stays[lease.request_id]
            return
        devices = {device.id: device for device in worker.devices} if worker else {}
        held = [devices[claim.device_id] for claim in lease.claims if claim.device_id in devices]
        first = next((device for device in held if device.kind != "cpu"), held[0] if held else None)
        if first is not None:
            name = device_class(first)
            stay.served[name] = stay.served.get(name, 0.0) + (now - lease.granted_at).total_seconds()

    def before(self, request_id: str, now: datetime) -> tuple[datetime, Mapping[str, float]]:
        """When a request that waits was first submitted, and what it was served since; now and nothing if it is new."""
        stay = self._stays.get(request_id)
        return (stay.submitted_at, dict(stay.served)) if stay is not None else (now, {})
