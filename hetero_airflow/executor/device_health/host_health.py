"""The errors that this host's drivers report, and the burn-ins on this host."""

import logging
from collections.abc import Iterable
from datetime import datetime

from hetero_airflow.discovery.health.burn_in import BurnInResult
from hetero_airflow.discovery.health.xid_watch import XidWatch, can_have_xids
from hetero_airflow.executor.device_health.burn_in_runs import BurnInRuns
from hetero_airflow.health.error_classes import EccCounters, ErrorClass, classify_xid, ecc_text
from hetero_airflow.health.transitions import ObservedError
from hetero_airflow.model.device import SICK_KEY, Device
from hetero_airflow.model.devices.identity import devices_leased_elsewhere
from hetero_airflow.model.hold import HoldKind, holds_on
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import Inventory

log = logging.getLogger(__name__)


class HostHealth:
    """The devices of this host. Nothing here blocks or uses the store. Without an inventory nothing happens.

    :param worker_id: this host's worker
    """

    def __init__(self, worker_id: str, xids: XidWatch | None = None) -> None:
        self.worker_id = worker_id
        self._xids = xids or XidWatch()
        self._errors: list[ObservedError] = []
        self._devices: dict[str, Device] = {}
        """As in the last inventory, without holds."""
        self._fatal: dict[tuple[str, int], datetime] = {}
        """(device id, XID) → time of the last one, of the fatal XIDs."""
        self._ecc = EccCounters()
        self._runs: BurnInRuns | None = None

    def take_inventory(self, inventory: Inventory, now: datetime) -> None:
        """Take over a new inventory."""
        before, self._devices = self._devices, {device.id: device for device in inventory.worker.devices}
        for device in inventory.worker.devices:
            is_new = device.id not in before or not before[device.id].details.get(SICK_KEY)
            if device.details.get(SICK_KEY) and is_new and device.parent is None:
                text = device.problem or "its driver reports it as sick"
                self._errors.append(ObservedError(device.id, ErrorClass.FATAL, text, now))
        for device_id, new_errors in self._ecc.new_errors(inventory.telemetry):
            self._errors.append(ObservedError(device_id, ErrorClass.FATAL, ecc_text(new_errors), now))

    def take_errors(self) -> list[ObservedError]:
        """The errors since the last call."""
        self._listen()
        errors, self._errors = self._errors, []
        return errors

    def fatal_xids(self, lease: Lease) -> tuple[tuple[str, int], ...]:
        """(device id, XID) of the fatal XIDs on a lease's devices since its grant; empty if it is not of this host."""
        if lease.worker_id != self.worker_id:
            return ()
        self._listen()
        leased = {claim.device_id for claim in lease.claims}
        parts = (device for device in self._devices.values() if device.id in leased)
        leased |= {device.parent for device in parts if device.parent is not None}
        return tuple(xid for xid, at in self._fatal.items() if xid[0] in leased and at >= lease.granted_at)

    def take_burn_in_result(self) -> tuple[str, BurnInResult] | None:
        """The device whose burn-in has just ended, and its result."""
        result = self._runs.poll() if self._runs is not None else None
        if self._runs is None or result is None:
            return None
        device_id, self._runs = self._runs.device_id, None
        return device_id, result

    def start_burn_in(self, due: Iterable[str], snapshot: Snapshot) -> None:
        """Continue the running burn-in if its device is still due, or start the next one.

        :param due: ids of devices on probation. One is tested if it is here, healthy for its probe, unused, not drained
        """
        due = list(due)
        if self._runs is not None and self._runs.device_id in due:
            return
        self._stop_burn_in()
        if not due:
            return
        elsewhere = devices_leased_elsewhere(snapshot, self.worker_id)
        drained = [hold for hold in snapshot.holds_of(self.worker_id) if hold.kind is HoldKind.DRAINED]
        for device_id in due:
            parts = [device for device in self._devices.values() if device.parent == device_id]
            targets = parts or [self._devices[id_] for id_ in (device_id,) if id_ in self._devices]
            if (
                targets
                and all(device.leasable and not holds_on(device, drained) for device in targets)
                and not any(_is_used(snapshot.used(self.worker_id, device.id)) for device in targets)
                and elsewhere.isdisjoint(device.id for device in targets)
            ):
                log.info("Device %s: the burn-in starts.", device_id)
                self._runs = BurnInRuns(device_id, targets, self.worker_id)
                return

    def close(self) -> None:
        """Stop the burn-in and the watch of the driver."""
        self._xids.close()
        self._stop_burn_in()

    def _listen(self) -> None:
        if not can_have_xids(self._devices.values()):
            return
        for event in self._xids.poll():
            error_class, text = classify_xid(event.xid)
            self._errors.append(ObservedError(event.uuid, error_class, text, event.at))
            if error_class is ErrorClass.FATAL:
                self._fatal[event.uuid, event.xid] = event.at

    def _stop_burn_in(self) -> None:
        if self._runs is not None:
            self._runs.close()
            self._runs = None


def _is_used(usage: DeviceUsage) -> bool:
    return bool(usage.share_milli or usage.memory_bytes)
