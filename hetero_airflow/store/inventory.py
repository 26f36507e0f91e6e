"""What the store keeps of a device, and what a new inventory does to it. Pure; shared by all stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.lease_rules import suits_device_kind


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device with what is leased of it.

    `capacity_milli` is what the device offers, or what is used where that is more: a CPU that lost
    cores while they were leased. It gives nothing more until enough leases have ended.
    """

    device: Device
    used_milli: int = 0
    used_memory_bytes: int = 0
    last_granted_at: datetime | None = None
    is_vanished: bool = False
    """Missing from the last inventory; kept because it is leased."""

    @property
    def offered_memory_bytes(self) -> int | None:
        """Memory that leases share out: a host's; None for an accelerator, where only thousandths count."""
        return self.device.memory_bytes if self.device.kind == "cpu" else None

    @property
    def capacity_milli(self) -> int:
        """Never below `used_milli`."""
        return max(self.device.capacity_milli, self.used_milli)

    @property
    def capacity_memory_bytes(self) -> int | None:
        """Never below `used_memory_bytes`; None where memory is not shared out."""
        offered = self.offered_memory_bytes
        return None if offered is None else max(offered, self.used_memory_bytes)

    @property
    def is_idle(self) -> bool:
        """Whether no live lease holds any of it."""
        return self.used_milli == 0 and self.used_memory_bytes == 0

    @property
    def usage(self) -> DeviceUsage:
        """As a snapshot shows it."""
        return DeviceUsage(self.used_milli, self.used_memory_bytes, self.last_granted_at)

    def grant(self, claim: Claim, now: datetime) -> DeviceRecord | None:
        """With the claim added, or None where it does not fit."""
        milli, memory = self.used_milli + claim.share_milli, self.used_memory_bytes + claim.memory_bytes
        limit = self.capacity_memory_bytes
        if (
            not self.device.leasable
            or not suits_device_kind(self.device.kind, claim)
            or milli > self.capacity_milli
            or (limit is not None and memory > limit)
        ):
            return None
        return replace(self, used_milli=milli, used_memory_bytes=memory, last_granted_at=now)

    def free(self, claim: Claim) -> DeviceRecord | None:
        """With the claim taken off, or None for a vanished device that nothing holds any more."""
        milli, memory = self.used_milli - claim.share_milli, self.used_memory_bytes - claim.memory_bytes
        freed = replace(self, used_milli=milli, used_memory_bytes=memory)
        return None if freed.is_vanished and freed.is_idle else freed


def merge_inventory(
    known: Mapping[str, DeviceRecord], worker: Worker, last_seen_at: datetime
) -> dict[str, DeviceRecord]:
    """The worker's devices after an inventory, in its order, then those that are gone but leased.

    :param last_seen_at: when the worker was seen before this inventory
    """
    taken = {
        device.id: replace(known[device.id], device=device, is_vanished=False)
        if device.id in known
        else DeviceRecord(device)
        for device in worker.devices
    }
    for device_id, record in known.items():
        if device_id not in taken and not record.is_idle:
            problem = f"not seen since {last_seen_at:%Y-%m-%d %H:%M:%S} UTC; leased until its task has ended"
            gone = record.device.model_copy(update={"leasable": False, "problem": problem})
            taken[device_id] = record if record.is_vanished else replace(record, device=gone, is_vanished=True)
    return taken


def worker_with_devices(worker: Worker, devices: Iterable[Device], state: WorkerState) -> Worker:
    """The worker as a snapshot shows it: with those devices, and in that state."""
    return worker.model_copy(update={"devices": tuple(devices), "state": state})
