"""The attained service of requests that lost their devices, for the queue when they come back.

It is kept in memory. Of a request that another scheduler placed, or this one before it restarted, only what the store
had when it was submitted counts: its first submission, and its service before that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.model.device import device_class
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.store import RequestHistory

_MAX_RECORDS = 10_000
"""Number of requests that are remembered. Another scheduler may finish one, and this one does not hear of it."""


@dataclass(slots=True)
class ServiceRecord:
    """The service of one request, from its first placement to its end."""

    submitted_at: datetime
    """The first submission."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Device class → seconds for which the request held devices."""
    interruptions: int = 0
    """How often it lost its devices and went on later."""


class AttainedService:
    """The requests that hold devices, or held some and go on later."""

    def __init__(self) -> None:
        self._records: dict[str, ServiceRecord] = {}

    def begin(self, request_id: str, submitted_at: datetime) -> None:
        """Note that a request got devices. Of too many, the one that got them first is forgotten."""
        self._put(request_id, self._records.get(request_id) or ServiceRecord(submitted_at))

    def _put(self, request_id: str, record: ServiceRecord) -> None:
        self._records.pop(request_id, None)
        self._records[request_id] = record
        if len(self._records) > _MAX_RECORDS:
            del self._records[next(iter(self._records))]

    def knows(self, request_id: str) -> bool:
        """Whether a request got devices here before."""
        return request_id in self._records

    def take_over(self, history: RequestHistory) -> None:
        """Take over a request that another scheduler placed, as the store has it. It lost each of its leases."""
        pending = history.pending
        record = ServiceRecord(pending.submitted_at, dict(pending.attained_service_s), len(history.leases))
        self._put(pending.id, record)

    def end(self, lease: Lease, worker: Worker | None, end: RunEnd | None, now: datetime) -> None:
        """Note that a lease has ended. Its service is kept only if the request goes on later."""
        record = self._records.get(lease.request_id)
        if record is None:
            return
        if end not in (RunEnd.PAUSED, None):
            del self._records[lease.request_id]
            return
        record.interruptions += 1
        devices = {device.id: device for device in worker.devices} if worker else {}
        held = [devices[claim.device_id] for claim in lease.claims if claim.device_id in devices]
        first = next((device for device in held if device.kind != "cpu"), held[0] if held else None)
        if first is not None:
            name = device_class(first)
            record.seconds[name] = record.seconds.get(name, 0.0) + (now - lease.granted_at).total_seconds()

    def before(self, request_id: str, now: datetime) -> ServiceRecord:
        """When a waiting request was first submitted, and its service since; `now` and nothing if it is new."""
        record = self._records.get(request_id) or ServiceRecord(now)
        return replace(record, seconds=dict(record.seconds))
