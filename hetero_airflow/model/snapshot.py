"""A snapshot: the state of the store at one moment, and all that a policy may use."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.model.estimates import NO_ESTIMATES, Estimates, TaskName
from hetero_airflow.model.hold import Hold
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import Worker

MIN_RUN_S = 300.0
"""Ten times the cost of a restart with up to 8 devices."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for a placement, with the facts that order the queue."""

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
    attained_service_s: Mapping[str, float] = field(default_factory=dict)
    """Device class → seconds for which it held all its devices there before; empty if it never ran."""
    gang: str = ""
    """Requests of one gang are placed all together or not at all; empty for a single request."""
    gang_size: int = 1
    is_paused: bool = False
    """A person keeps it out of placement."""
    interruptions: int = 0
    """How often it lost its devices before its end and went on later."""

    @property
    def task(self) -> TaskName:
        """The key of its estimates."""
        return self.dag_id, self.task_id

    def order(self) -> tuple[datetime, str]:
        """Its sort key in the queue: the time of submission, then the id."""
        return self.submitted_at, self.id


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The amount of one device that the live leases hold."""

    share_milli: int = 0
    memory_bytes: int = 0
    last_granted_at: datetime | None = None


NO_USAGE = DeviceUsage()


class UsageByWorker(Mapping[tuple[str, str], DeviceUsage]):
    """(worker id, device id) → usage, stored per worker. A copy costs one pointer per worker, not one per device."""

    __slots__ = ("by_worker",)

    def __init__(self, by_worker: Mapping[str, Mapping[str, DeviceUsage]]) -> None:
        self.by_worker = by_worker
        """Worker id → device id → usage. The same object for a worker means that nothing changed there."""

    @classmethod
    def of(cls, usage: Mapping[tuple[str, str], DeviceUsage]) -> "UsageByWorker":
        """The same usage by worker; returns the argument if it already is a `UsageByWorker`.

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
    """Immutable. Two snapshots of one store with the same `sequence` are equal."""

    sequence: int
    workers: tuple[Worker, ...] = ()
    usage: Mapping[tuple[str, str], DeviceUsage] = field(default_factory=dict)
    """(worker id, device id) → usage; a device that was never leased may be absent."""
    pending: tuple[PendingRequest, ...] = ()
    leases: tuple[Lease, ...] = ()
    """The live leases: granted, active, preempted or expired."""
    dag_tokens: Mapping[str, int] = field(default_factory=dict)
    """DAG id → the greatest fencing token of its requests so far, for round-robin policies; absent: none yet."""
    holders: Mapping[str, PendingRequest] = field(default_factory=dict)
    """Request id → request, for each live lease."""
    estimates: Estimates = NO_ESTIMATES
    can_preempt: bool = False
    """Whether a plan may take leases back."""
    holds: tuple[Hold, ...] = ()
    """Ordered by worker, device and kind. Held devices in `workers` are already not leasable."""
    protects_unsaved: bool = False
    """Whether a lease without a saved checkpoint is preempted only for a higher priority class. It is not known whether
    its task can save at all."""
    min_run_s: float = MIN_RUN_S
    """The shortest time from a grant to a preemption, if the policy has no own value."""
    preempts_within_class: bool = True
    """Whether a policy that orders by priority class may take a lease back for a request of the same class."""
    patience: bool = True
    """Whether a policy may let a request wait for better devices while others are free."""
    held_data: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Worker id → `held_name` of an object or folder of an object store → bytes of it in the host's cache."""

    def is_protected(self, lease: Lease) -> bool:
        """Whether a lease may be preempted only for a higher priority class."""
        return self.protects_unsaved and lease.saved_at is None

    def with_preempted(self, lease_ids: Collection[str]) -> "Snapshot":
        """The snapshot in which these leases are taken back."""
        if not lease_ids:
            return self
        leases = (
            lease.model_copy(update={"state": LeaseState.PREEMPTED}) if lease.id in lease_ids else lease
            for lease in self.leases
        )
        return replace(self, leases=tuple(leases))

    def holds_of(self, worker_id: str) -> tuple[Hold, ...]:
        """The holds on a worker and its devices."""
        return tuple(hold for hold in self.holds if hold.worker_id == worker_id)

    def used(self, worker_id: str, device_id: str) -> DeviceUsage:
        """The leased amount of one device."""
        return self.usage.get((worker_id, device_id), NO_USAGE)
