"""What the errors mean that a worker's agent tells of its devices: judged as those of a scheduler's own host."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from hetero_airflow.agent.protocol import DeviceError
from hetero_airflow.discovery.health.ecc_counters import ecc_text
from hetero_airflow.health.error_classes import ErrorClass, classify_xid
from hetero_airflow.health.transitions import HealthChanged, ObservedError, error_changes

MAX_ERROR_AGE = timedelta(days=1)
"""An error of before that counts as of then, and one of the future as of now: so no clock bars a device for ever.

One that takes the device out at once does so from now on: its quarantine would be over if it is told late.
"""


def health_changes(worker_id: str, told: Iterable[DeviceError], now: datetime) -> tuple[HealthChanged, ...]:
    """What they change in the health of the worker's devices; an error that is told again counts once."""
    return tuple(error_changes(worker_id, (_seen(error, now) for error in told)))


def _seen(error: DeviceError, now: datetime) -> ObservedError:
    if error.xid is not None:
        error_class, text = classify_xid(error.xid)
    else:
        error_class, text = ErrorClass.FATAL, ecc_text(error.ecc_errors or 0)
    at = now if error_class is ErrorClass.FATAL else min(max(error.at, now - MAX_ERROR_AGE), now)
    return ObservedError(error.device_id, error_class, text, at, source=f"{text} at {error.at.isoformat()}")
