"""The record of a device in a store, and how a new inventory changes it. Pure; shared by all stores."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.identity import physical_ids
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.lease_rules import suits_device_kind


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device and how much of it is leased.

    The capacity is what the device offers, or what is used if that is more: a CPU can lose cores while they are
    leased. Then it accepts no new lease until enough leases have ended.
    """

    device: Device
    used_milli: int = 0
    used_memory_bytes: int = 0
    last_granted_at: datetime | None = None
    is_vanished: bool = False
    """Missing from the last inventory; kept while it is leased."""
    physical_id: str | None = None
    """As in `physical_ids`; None for a device that no other worker can report."""
    reported_since: datetime | None = None
    """When the worker first reported it with this physical id."""

    @property
    def offered_memory_bytes(self) -> int | None:
        """Host memory that leases divide; None for an accelerator, where only the share counts."""
        return (self.device.memory_bytes or 0) if self.device.kind == "cpu" else None

    @property
    def capacity_milli(self) -> int:
        """Never below `used_milli`."""
        return max(self.device.capacity_milli, self.used_milli)

    @property
    def capacity_memory_bytes(self) -> int | None:
        """Never below `used_memory_bytes`; None for an accelerator."""
        offered = self.offered_memory_bytes
        return None if offered is None else max(offered, self.used_memory_bytes)

    @property
    def is_idle(self) -> bool:
        """Whether no live lease holds a part of the device."""
        return self.used_milli == 0 and self.used_memory_bytes == 0

    @property
    def usage(self) -> DeviceUsage:
        """The usage in a snapshot."""
        return DeviceUsage(self.used_milli, self.used_memory_bytes, self.last_granted_at)

    def grant(self, claim: Claim, now: datetime) -> "DeviceRecord | None":
        """The record with the claim added, or None if the claim does not fit."""
        used_milli, memory = self.used_milli + claim.share_milli, self.used_memory_bytes + claim.memory_bytes
        limit = self.capacity_memory_bytes
        if (
            not self.device.leasable
            or not suits_device_kind(self.device.kind, claim)
            or used_milli > self.capacity_milli
            or (limit is not None and memory > limit)
        ):
            return None
        return replace(self, used_milli=used_milli, used_memory_bytes=memory, last_granted_at=now)

    def free(self, claim: Claim) -> "DeviceRecord | None":
        """The record without the claim, or None for a vanished device that has no lease left."""
        used_milli, memory = self.used_milli - claim.share_milli, self.used_memory_bytes - claim.memory_bytes
        freed = replace(self, used_milli=used_milli, used_memory_bytes=memory)
        return None if freed.is_vanished and freed.is_idle else freed


def merge_inventory(
    stored: Mapping[str, DeviceRecord], worker: Worker, last_seen_at: datetime, now: datetime
) -> dict[str, DeviceRecord]:
    """The worker's devices after an inventory, in its order, then the missing devices that are leased.

    :param last_seen_at: time of the worker's heartbeat before this inventory
    """
    ids = physical_ids(worker)
    merged = {
        device.id: _reported(stored.get(device.id) or DeviceRecord(device), device, ids.get(device.id), now)
        for device in worker.devices
    }
    for device_id, record in stored.items():
        if device_id not in merged and not record.is_idle:
            problem = f"not seen since {last_seen_at:%Y-%m-%d %H:%M:%S} UTC; leased until its task has ended"
            missing = record.device.model_copy(update={"leasable": False, "problem": problem})
            merged[device_id] = record if record.is_vanished else replace(record, device=missing, is_vanished=True)
    return merged


def _reported(record: DeviceRecord, device: Device, physical_id: str | None, now: datetime) -> DeviceRecord:
    since = record.reported_since if record.physical_id == physical_id else now
    return replace(record, device=device, is_vanished=False, physical_id=physical_id, reported_since=since)


def worker_with_devices(worker: Worker, devices: Iterable[Device], state: WorkerState) -> Worker:
    """The worker as a snapshot shows it: with these devices and in this state."""
    return worker.model_copy(update={"devices": tuple(devices), "state": state})
