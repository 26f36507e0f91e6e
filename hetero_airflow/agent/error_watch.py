"""Collects the errors that the host's drivers report, until the server confirms them."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import ValidationError

from hetero_airflow.agent.protocol import MAX_ERRORS, DeviceError, valid_readings
from hetero_airflow.discovery.health.xid_watch import XidWatch, can_have_xids
from hetero_airflow.health.error_classes import EccCounters
from hetero_airflow.health.transitions import ERROR_RATES
from hetero_airflow.model.worker import Inventory

MAX_KEPT = max(rate.count for rate in ERROR_RATES.values())
"""Newest errors to keep of one kind on one device, so that a storm of one kind removes no other."""


def _now() -> datetime:
    return datetime.now(UTC)


class ErrorWatch:
    """Watches one host's devices; no method blocks.

    :param now: time for ECC errors; each XID has its own time
    """

    def __init__(self, xids: XidWatch | None = None, now: Callable[[], datetime] = _now) -> None:
        self._xids, self._now = xids or XidWatch(), now
        self._ecc = EccCounters()
        self._has_xids = False
        self._kept: dict[tuple[str, int | None], deque[DeviceError]] = {}
        """(device id, XID, or None for ECC) → its errors."""

    def take_inventory(self, inventory: Inventory) -> None:
        """Find new ECC errors in an inventory."""
        self._has_xids = can_have_xids(inventory.worker.devices)
        for device_id, more in self._ecc.new_errors(valid_readings(inventory.telemetry)):
            self._keep(DeviceError(device_id=device_id, at=self._now(), ecc_errors=more))

    def unconfirmed(self) -> tuple[DeviceError, ...]:
        """The errors that the server has not confirmed, oldest first, as many as one heartbeat may carry."""
        for xid_error in self._xids.poll() if self._has_xids else ():
            with suppress(ValidationError):  # the driver reports an impossible number
                self._keep(DeviceError(device_id=xid_error.uuid, at=xid_error.at, xid=xid_error.xid))
        errors = [error for recent in self._kept.values() for error in recent]
        return tuple(sorted(errors, key=lambda error: error.at)[:MAX_ERRORS])

    def confirm(self, errors: Iterable[DeviceError]) -> None:
        """Drop errors that the server has recorded."""
        for error in errors:
            kept_errors = self._kept.get((error.device_id, error.xid), ())
            remaining = deque((kept_error for kept_error in kept_errors if kept_error != error), MAX_KEPT)
            if remaining:
                self._kept[error.device_id, error.xid] = remaining
            else:
                self._kept.pop((error.device_id, error.xid), None)

    def close(self) -> None:
        """Stop watching."""
        self._xids.close()

    def _keep(self, error: DeviceError) -> None:
        self._kept.setdefault((error.device_id, error.xid), deque(maxlen=MAX_KEPT)).append(error)
