"""The store at one moment: everything that a policy may look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that waits for a placement, with what orders the queue."""

    id: str
    request: DeviceRequest
    submitted_at: datetime
    weight: int = 1
    """Airflow's priority weight of the task."""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 1


@dataclass(frozen=True, slots=True)
class Usage:
    """What the live leases hold of one device."""

    milli: int = 0
    memory_bytes: int = 0
    last_granted_at: datetime | None = None


UNUSED = Usage()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable; two snapshots of the same `sequence` are equal."""

    sequence: int
    workers: tuple[Worker, ...] = ()
    usage: Mapping[tuple[str, str], Usage] = field(default_factory=dict)
    """(worker id, device id) → usage; devices that were never leased may be absent."""
    pending: tuple[Pending, ...] = ()
    leases: tuple[Lease, ...] = ()
    """The live ones: granted, active or expired."""
    dag_tokens: Mapping[str, int] = field(default_factory=dict)
    """DAG id → the greatest fencing token that one of its requests ever got; absent for never: whose turn it is."""

    def used(self, worker_id: str, device_id: str) -> Usage:
        """What is leased of one device."""
        return self.usage.get((worker_id, device_id), UNUSED)
