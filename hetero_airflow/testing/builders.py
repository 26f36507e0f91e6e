"""Builders of values, a clock and test doubles."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hetero_airflow.clock import Clock
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.engines.engine import Liveness
from hetero_airflow.errors import StoreError
from hetero_airflow.model.device import Device
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Account, Place, Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import EndedRun, MeasuredSpeed, RunEnd
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.store import CommitResult, LeaseMove, Store, StoreEvent
from hetero_airflow.units import parse_bytes

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time at which `FakeClock` starts."""


class FakeClock(Clock):
    """A clock that moves only when a test moves it."""

    def __init__(self, now: datetime = EPOCH) -> None:
        self._now = now

    def now(self) -> datetime:
        """The time to which it was last moved."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Move the clock; the new time."""
        self._now += timedelta(seconds=seconds)
        return self._now


def a_device(id: str = "GPU-0", model: str = "a100-sxm4-40gb", memory: str | None = "40GiB", **fields: Any) -> Device:
    """A healthy NVIDIA GPU; `fields` override, and None is unknown memory."""
    values = {"vendor": "nvidia", "kind": "gpu", "index": 0, "driver": "550.54.15", "capability": "8.0"} | fields
    return Device(id=id, model=model, memory_bytes=memory and parse_bytes(memory), **values)


def a_cpu(cores: int = 8, memory: str = "64GiB", **fields: Any) -> Device:
    """The CPU device of a host."""
    values = {"vendor": "generic", "kind": "cpu", "model": "x86-64", "index": 0, "capability": "x86-64"} | fields
    return Device(id="cpu", memory_bytes=parse_bytes(memory), cores=tuple(range(cores)), **values)


def a_worker(id: str = "worker-a", devices: tuple[Device, ...] | None = None, **fields: Any) -> Worker:
    """A worker with a CPU of 8 cores and two A100; `fields` override."""
    if devices is None:
        devices = (a_cpu(), a_device("GPU-0"), a_device("GPU-1", index=1))
    values = {"host": id, "runtime": {"cuda": "12.4", "torch": "2.9.0", "python": "3.12.1"}} | fields
    return Worker(id=id, devices=devices, **values)


def a_pending(id: str = "r1", device: object = "gpu", at_s: float = 0, **fields: Any) -> PendingRequest:
    """A request submitted `at_s` seconds after `EPOCH`; `fields` are those of it and of `DeviceRequest.parse`."""
    of_pending = {name: fields.pop(name) for name in list(fields) if name in PendingRequest.__dataclass_fields__}
    request = DeviceRequest.parse(device, **fields)
    values = {"dag_id": "dag", "run_id": "run", "task_id": id} | of_pending
    return PendingRequest(id=id, request=request, submitted_at=EPOCH + timedelta(seconds=at_s), **values)


def a_place(request_id: str = "r1", worker_id: str = "worker-a", **milli_by_device: int) -> Place:
    """A placement that claims thousandths of devices: ``a_place("r1", **{"GPU-0": 1000})``."""
    claims = tuple(
        Claim(device_id=device_id, share_milli=share_milli) for device_id, share_milli in milli_by_device.items()
    )
    return Place(request_id, worker_id, 0, claims, Account("test", "as the test says"))


def a_lease(request_id: str = "r1", worker_id: str = "worker-a", ago_s: float = 3600, **milli_by_device: int) -> Lease:
    """A lease granted `ago_s` seconds before `EPOCH`, its task running: ``a_lease("r1", **{"GPU-0": 1000})``."""
    claims = tuple(
        Claim(device_id=device_id, share_milli=share_milli) for device_id, share_milli in milli_by_device.items()
    )
    granted_at = EPOCH - timedelta(seconds=ago_s)
    return Lease(
        id=f"{request_id}.1", request_id=request_id, worker_id=worker_id, alternative=0, claims=claims, token=1,
        state=LeaseState.ACTIVE, granted_at=granted_at, expires_at=EPOCH + timedelta(hours=1),
    )  # fmt: skip


def leased(snapshot: Snapshot, *leases: tuple[Lease, PendingRequest]) -> Snapshot:
    """The snapshot with these leases and their holders, and what they use."""
    usage = dict(snapshot.usage)
    for lease, _ in leases:
        for claim in lease.claims:
            before = usage.get((lease.worker_id, claim.device_id), DeviceUsage())
            usage[lease.worker_id, claim.device_id] = DeviceUsage(
                before.share_milli + claim.share_milli, before.memory_bytes + claim.memory_bytes, lease.granted_at
            )
    holders = {pending.id: pending for _, pending in leases}
    all_leases = (*snapshot.leases, *(lease for lease, _ in leases))
    return replace(snapshot, usage=usage, leases=all_leases, holders={**snapshot.holders, **holders})


def a_task_lease(**fields: Any) -> TaskLease:
    """A task's lease on two whole A100; `fields` override."""
    values = {
        "id": "lease-1",
        "token": 3,
        "worker": "host-a",
        "vendor": "nvidia",
        "kind": "gpu",
        "model": "a100-sxm4-40gb",
        "ids": ("GPU-b", "GPU-a"),
        "indexes": (2, 5),
        "memory_bytes": 40 * 2**30,
        "share": None,
    }
    return TaskLease(**values | fields)


def a_signer() -> GrantSigner:
    """A scheduler's signer with a new key."""
    return GrantSigner(Ed25519PrivateKey.generate())


def a_run(**fields: Any) -> EndedRun:
    """A run of a minute on one A100 that finished at `EPOCH`; `fields` override."""
    values: dict[str, Any] = {
        "sequence": 1,
        "request_id": "r1",
        "task": ("dag", "task"),
        "asked": DeviceRequest.parse("gpu").alternatives[0],
        "device_class": "nvidia/a100-sxm4-40gb",
        "devices": 1,
        "held_s": 60.0,
        "end": RunEnd.FINISHED,
        "ended_at": EPOCH,
    }
    return EndedRun(**values | fields)


def a_speed(steps_per_s: float = 4.0, **fields: Any) -> MeasuredSpeed:
    """A minute of steps of a task on an A100; `fields` override."""
    values: dict[str, Any] = {
        "task": ("dag", "task"),
        "device_class": "nvidia/a100-sxm4-40gb",
        "log_speed": math.log(steps_per_s),
        "deviation": 0.02,
        "steps": round(60 * steps_per_s),
        "seconds": 60.0,
    }
    return MeasuredSpeed(**values | fields)


def move_lease(store: Store, lease_id: str, token: int, to: LeaseState, now: datetime, cause: str = "") -> Lease:
    """Move one lease to another state; raises the error with which the store refuses."""
    outcome = store.move([LeaseMove(lease_id, token, to, cause)], now)[0]
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


class FakeEngine:
    """An engine that records what it gets and answers as a test sets it."""

    def __init__(self) -> None:
        self.dispatched: list[Lease] = []
        self.failing: set[str] = set()
        """Ids of requests whose dispatch raises."""
        self.far: set[str] = set()
        """Ids of workers that it can't reach."""
        self.slots: int | None = None
        self.foreign: set[str] = set()
        """Ids of requests of another scheduler."""
        self.alive: dict[str, Liveness] = {}
        """Request id → what is known of its process; UNKNOWN where absent."""

    def dispatch(self, lease: Lease) -> None:
        """Record the lease, or raise."""
        if lease.request_id in self.failing:
            raise RuntimeError("the test makes the engine fail")
        self.dispatched.append(lease)

    def is_ours(self, request_id: str) -> bool:
        """False for `foreign` requests."""
        return request_id not in self.foreign

    def reaches(self, worker_id: str) -> bool:
        """False for `far` workers."""
        return worker_id not in self.far

    def open_slots(self) -> int | None:
        """`slots`."""
        return self.slots

    def liveness(self, lease: Lease) -> Liveness:
        """By `alive`."""
        return self.alive.get(lease.request_id, Liveness.UNKNOWN)


class RejectingStore:
    """A store whose `commit` refuses placements, as if another scheduler were faster (Nomad's RejectPlan).

    :param refusals: request id → how many of its placements are refused before one is granted
    """

    def __init__(self, store: Store, refusals: Mapping[str, int]) -> None:
        self._store = store
        self.left = dict(refusals)

    def commit(
        self, plan: Plan, now: datetime, expires_at: datetime, events: Sequence[StoreEvent] = ()
    ) -> CommitResult:
        """Grant the other placements."""
        refused = tuple(place.request_id for place in plan.places if self.left.get(place.request_id, 0) > 0)
        self.left |= {request_id: self.left[request_id] - 1 for request_id in refused}
        accepted = Plan(tuple(decision for decision in plan.decisions if decision.request_id not in refused))
        commit = self._store.commit(accepted, now, expires_at, events)
        return CommitResult(commit.leases, (*commit.raced, *refused))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
