"""The store at one moment: everything that a policy may look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from hetero_airflow.model.estimates import NO_ESTIMATES, Estimates, TaskName
from hetero_airflow.model.hold import Hold
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker

MIN_RUN_S = 300.0
"""Ten times what a restart with up to 8 devices costs."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for a placement, with what orders the queue."""

    __pydantic_config__ = ConfigDict(serialize_by_alias=True)

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
    attained_service_s: Annotated[Mapping[str, float], Field(alias="served")] = field(default_factory=dict)
    """Device class → seconds for which it held all its devices there before; empty if it never ran."""
    gang: str = ""
    """Requests of one gang are placed all together or not at all; empty for a request of its own."""
    gang_size: int = 1

    @property
    def task(self) -> TaskName:
        """What estimates are kept by."""
        return self.dag_id, self.task_id

    def order(self) -> tuple[datetime, str]:
        """Where it stands among those that wait: by the time of its submission."""
        return self.submitted_at, self.id


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What the live leases hold of one device."""

    __pydantic_config__ = ConfigDict(serialize_by_alias=True)

    share_milli: Annotated[int, Field(alias="milli")] = 0
    memory_bytes: int = 0
    last_granted_at: datetime | None = None


NO_USAGE = DeviceUsage()


class UsageByWorker(Mapping[tuple[str, str], DeviceUsage]):
    """(worker id, device id) → usage, held worker by worker: a copy costs one pointer a worker, not one a device."""

    __slots__ = ("by_worker",)

    def __init__(self, by_worker: Mapping[str, Mapping[str, DeviceUsage]]) -> None:
        self.by_worker = by_worker
        """Worker id → device id → usage. Who sees the same object for a worker again knows that nothing changed."""

    @classmethod
    def of(cls, usage: Mapping[tuple[str, str], DeviceUsage]) -> UsageByWorker:
        """The same usage by worker; itself where it is so already.

        >>> UsageByWorker.of({("a", "GPU-0"): DeviceUsage(500)}).by_worker
        {'a': {'GPU-0': DeviceUsage(share_milli=500, memory_bytes=0, last_granted_at=None)}}
        """
        if isinstance(usage, cls):
            return usage
        by_worker: dict[str, dict[str, DeviceUsage]] = {}
        for (worker_id, device_id), value in usage.items():
            by_worker.setdefault(worker_id, {})[device_id] = value
        return cls(by_worker)

    def __getitem__(self, key: tuple[str, str]) -> DeviceUsage:
        return self.by_worker[key[0]][key[1]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((worker_id, device_id) for worker_id, usages in self.by_worker.items() for device_id in usages)

    def __len__(self) -> int:
        return sum(map(len, self.by_worker.values()))

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable; two that a store gives with the same `sequence` are equal."""

    sequence: int
    workers: tuple[Worker, ...] = ()
    usage: Mapping[tuple[str, str], DeviceUsage] = field(default_factory=dict)
    """(worker id, device id) → usage; devices that were never leased may be absent."""
    pending: tuple[PendingRequest, ...] = ()
    leases: tuple[Lease, ...] = ()
    """The live ones: granted, active or expired."""
    dag_tokens: Mapping[str, int] = field(default_factory=dict)
    """DAG id → the greatest fencing token that one of its requests ever got; absent for never: whose turn it is."""
    holders: Mapping[str, PendingRequest] = field(default_factory=dict)
    """Request id → the request, of each live lease."""
    estimates: Estimates = NO_ESTIMATES
    can_preempt: bool = False
    """Whether a plan may take leases back."""
    holds: tuple[Hold, ...] = ()
    """By worker, device and kind. The devices of `workers` are as these leave them: not leasable."""
    protects_unsaved: bool = False
    """Whether a lease under which nothing was saved yet is taken back for a higher class only: nobody knows whether its
    task can save at all."""

    min_run_s: float = MIN_RUN_S
    """For so long whoever got its devices keeps them, where the policy has no such time of its own."""

    def is_protected(self, lease: Lease) -> bool:
        """Whether a lease must not be taken back for anything less than a higher class."""
        return self.protects_unsaved and lease.saved_at is None

    def holds_of(self, worker_id: str) -> tuple[Hold, ...]:
        """The holds on a worker and its devices."""
        return tuple(hold for hold in self.holds if hold.worker_id == worker_id)

    def used(self, worker_id: str, device_id: str) -> DeviceUsage:
        """What is leased of one device."""
        return self.usage.get((worker_id, device_id), NO_USAGE)
