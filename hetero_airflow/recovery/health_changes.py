"""What errors, burn-ins and time change in the store's record of a device, as events for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from hetero_airflow.health.transitions import (
    ERROR_RATES,
    ObservedError,
    after_burn_in,
    after_error,
    after_time,
    hold_of,
)
from hetero_airflow.model.device_health import DeviceHealth
from hetero_airflow.model.hold import Hold
from hetero_airflow.store.store import HealthChanged


def error_changes(worker_id: str, errors: Iterable[ObservedError]) -> list[HealthChanged]:
    """Errors of the worker's devices: an event for each device that had one which counts.

    >>> from hetero_airflow.model.device_health import NO_ERRORS
    >>> from hetero_airflow.health.error_classes import ErrorClass
    >>> from hetero_airflow.testing import EPOCH
    >>> (event,) = error_changes("worker-a", [ObservedError("GPU-0", ErrorClass.FATAL, "XID 79", EPOCH)])
    >>> health, bar = event.change(NO_ERRORS)
    >>> health.state, bar.cause
    (<HealthState.QUARANTINED: 'quarantined'>, 'XID 79')
    """
    told: dict[str, list[ObservedError]] = {}
    for error in errors:
        if error.error_class in ERROR_RATES:
            told.setdefault(error.device_id, []).append(error)
    return [_change(worker_id, device_id, partial(_after_errors, errors=own)) for device_id, own in told.items()]


def burn_in_change(worker_id: str, device_id: str, failure: str, now: datetime) -> HealthChanged:
    """The end of a device's probation: by a burn-in, which passed if `failure` is empty, or without one."""
    return _change(worker_id, device_id, lambda health: after_burn_in(health, failure, now))


def time_change(worker_id: str, device_id: str, now: datetime) -> HealthChanged:
    """What has ended by itself: a quarantine, or the time for which old errors count."""
    return _change(worker_id, device_id, lambda health: after_time(health, now))


def _after_errors(health: DeviceHealth, errors: Iterable[ObservedError]) -> DeviceHealth:
    for error in errors:
        health = after_error(after_time(health, error.at), error)
    return health


def _change(worker_id: str, device_id: str, after: Callable[[DeviceHealth], DeviceHealth]) -> HealthChanged:
    def change(before: DeviceHealth) -> tuple[DeviceHealth, Hold | None]:
        health = after(before)
        return health, hold_of(worker_id, device_id, health)

    return HealthChanged(worker_id, device_id, change)
