"""Builders and doubles for tests of this package and of plug-ins for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Account, Place
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Pending
from hetero_airflow.model.worker import Worker
from hetero_airflow.units import parse_bytes

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time at which `FakeClock` starts."""


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: datetime = EPOCH) -> None:
        self._now = now

    def now(self) -> datetime:
        """The time it was last moved to."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Move on, and tell the new time."""
        self._now += timedelta(seconds=seconds)
        return self._now


def a_device(id: str = "GPU-0", model: str = "a100-sxm4-40gb", memory: str = "40GiB", **fields: Any) -> Device:
    """A healthy NVIDIA GPU, unless told otherwise."""
    given = {"vendor": "nvidia", "kind": "gpu", "index": 0, "driver": "550.54.15", "capability": "8.0"} | fields
    return Device(id=id, model=model, memory_bytes=parse_bytes(memory), **given)


def a_cpu(cores: int = 8, memory: str = "64GiB", **fields: Any) -> Device:
    """The CPU device of a host."""
    given = {"vendor": "generic", "kind": "cpu", "model": "x86-64", "index": 0} | fields
    return Device(id="cpu", memory_bytes=parse_bytes(memory), cores=tuple(range(cores)), **given)


def a_worker(id: str = "worker-a", devices: tuple[Device, ...] | None = None, **fields: Any) -> Worker:
    """A worker with a CPU of 8 cores and two A100, unless told otherwise."""
    if devices is None:
        devices = (a_cpu(), a_device("GPU-0"), a_device("GPU-1", index=1))
    given = {"host": id, "runtime": {"cuda": "12.4", "torch": "2.9.0", "python": "3.12.1"}} | fields
    return Worker(id=id, devices=devices, **given)


def a_pending(id: str = "r1", device: object = "gpu", at_s: float = 0, **fields: Any) -> Pending:
    """A request submitted `at_s` seconds after `EPOCH`; what `DeviceRequest.parse` takes goes to the request."""
    own = {name: fields.pop(name) for name in list(fields) if name in Pending.__dataclass_fields__}
    request = DeviceRequest.parse(device, **fields)
    given = {"dag_id": "dag", "run_id": "run", "task_id": id} | own
    return Pending(id=id, request=request, submitted_at=EPOCH + timedelta(seconds=at_s), **given)


def a_place(request_id: str = "r1", worker_id: str = "worker-a", **milli_by_device: int) -> Place:
    """A placement that claims thousandths of devices: ``a_place("r1", **{"GPU-0": 1000})``."""
    claims = tuple(Claim(device_id=device_id, milli=milli) for device_id, milli in milli_by_device.items())
    return Place(request_id, worker_id, 0, claims, Account("test", "as the test says"))
