"""What is remembered of a device's errors. How it changes is `hetero_airflow.health.transitions`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class HealthState(StrEnum):
    """Whether a device is trusted with tasks."""

    HEALTHY = "healthy"
    """Nothing known against it, or what was is over."""
    QUARANTINED = "quarantined"
    """Out after errors, for a time that grows with each time."""
    PROBATION = "probation"
    """Its time is over: a burn-in computation decides."""
    RETIRED = "retired"
    """Out too often: until a person undrains it."""


@dataclass(frozen=True, slots=True)
class CountedError:
    """An error that alone is no reason to take a device out."""

    error_class: str
    at: datetime
    source: str = ""
    """Errors of one source count once, where there is one: a task that fails again and again is one witness."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device's state and record; `WELL` for one that never had an error."""

    state: HealthState = HealthState.HEALTHY
    strikes: int = 0
    """How often it was taken out since it was last forgiven."""
    since: datetime | None = None
    """When it came into the state."""
    until: datetime | None = None
    """Of a quarantine: its end."""
    cause: str = ""
    """Of the last time that it was taken out."""
    errors: tuple[CountedError, ...] = ()
    """Of the recent past."""


NO_ERRORS = DeviceHealth()
