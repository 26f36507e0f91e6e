"""What this host's own drivers say of its devices' health, and the burn-ins that are run here."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from hetero_airflow.discovery.health.burn_in import BurnInResult
from hetero_airflow.discovery.health.ecc_counters import EccCounters
from hetero_airflow.discovery.health.xid_watch import XidWatch, can_have_xids
from hetero_airflow.executor.device_health.burn_in_runs import BurnInRuns
from hetero_airflow.health.error_classes import ErrorClass, classify_xid, ecc_text
from hetero_airflow.health.transitions import ObservedError
from hetero_airflow.model.device import SICK_KEY, Device
from hetero_airflow.model.hold import HoldKind, holds_on
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import Inventory

log = logging.getLogger(__name__)


class HostHealth:
    """One host's devices. Nothing here blocks, and nothing touches the store; without an inventory nothing happens.

    :param worker_id: of this host
    """

    def __init__(self, worker_id: str, xids: XidWatch | None = None) -> None:
        self.worker_id = worker_id
        self._xids = xids or XidWatch()
        self._errors: list[ObservedError] = []
        self._devices: dict[str, Device] = {}
        """As the last inventory found them: without what bars say."""
        self._fatal: dict[tuple[str, int], datetime] = {}
        """(device id, XID) → when it was heard last, of the fatal ones."""
        self._ecc = EccCounters()
        self._runs: BurnInRuns | None = None

    def take_inventory(self, inventory: Inventory, now: datetime) -> None:
        """Take note of what a discovery found."""
        before, self._devices = self._devices, {device.id: device for device in inventory.worker.devices}
        for device in inventory.worker.devices:
            is_news = device.id not in before or not before[device.id].details.get(SICK_KEY)
            if device.details.get(SICK_KEY) and is_news and device.parent is None:
                text = device.problem or "its driver says so"
                self._errors.append(ObservedError(device.id, ErrorClass.FATAL, text, now))
        for device_id, more in self._ecc.new_errors(inventory.telemetry):
            self._errors.append(ObservedError(device_id, ErrorClass.FATAL, ecc_text(more), now))

    def take_errors(self) -> list[ObservedError]:
        """The errors that were heard of since the last call."""
        self._listen()
        errors, self._errors = self._errors, []
        return errors

    def fatal_xids(self, lease: Lease) -> tuple[tuple[str, int], ...]:
        """(device id, XID) of the fatal ones of the lease's devices since it was granted, if it is one of this host."""
        if lease.worker_id != self.worker_id:
            return ()
        self._listen()
        held = {claim.device_id for claim in lease.claims}
        held |= {device.parent for device in self._devices.values() if device.id in held and device.parent is not None}
        return tuple(told for told, at in self._fatal.items() if told[0] in held and at >= lease.granted_at)

    def take_burn_in_result(self) -> tuple[str, BurnInResult] | None:
        """The device whose burn-in has just ended, and what it found."""
        result = self._runs.poll() if self._runs is not None else None
        if self._runs is None or result is None:
            return None
        tried, self._runs = self._runs.device_id, None
        return tried, result

    def start_burn_in(self, due: Iterable[str], snapshot: Snapshot) -> None:
        """Go on with the burn-in that runs, if its device is still due, or begin the next one.

        :param due: ids of devices on probation; one is tried that is here, seen well by its probe, unused, not drained
        """
        due = list(due)
        if self._runs is not None and self._runs.device_id in due:
            return
        self._stop_burn_in()
        if not due:
            return
        drained = [bar for bar in snapshot.holds_of(self.worker_id) if bar.kind is HoldKind.DRAINED]
        for device_id in due:
            parts = [device for device in self._devices.values() if device.parent == device_id]
            own = self._devices.get(device_id)
            targets = parts or ([own] if own is not None else [])
            if (
                targets
                and all(device.leasable and not holds_on(device, drained) for device in targets)
                and not any(_is_used(snapshot.used(self.worker_id, device.id)) for device in targets)
            ):
                log.info("Device %s: a burn-in begins.", device_id)
                self._runs = BurnInRuns(device_id, targets, self.worker_id)
                return

    def close(self) -> None:
        """End what runs beside."""
        self._xids.close()
        self._stop_burn_in()

    def _listen(self) -> None:
        if not can_have_xids(self._devices.values()):
            return
        for seen in self._xids.poll():
            error_class, text = classify_xid(seen.xid)
            self._errors.append(ObservedError(seen.uuid, error_class, text, seen.at))
            if error_class is ErrorClass.FATAL:
                self._fatal[seen.uuid, seen.xid] = seen.at

    def _stop_burn_in(self) -> None:
        if self._runs is not None:
            self._runs.close()
            self._runs = None


def _is_used(usage: DeviceUsage) -> bool:
    return bool(usage.share_milli or usage.memory_bytes)
