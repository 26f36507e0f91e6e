"""The record of a device's errors. `hetero_airflow.health.transitions` has the rules that change it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class HealthState(StrEnum):
    """Whether a device may get tasks."""

    HEALTHY = "healthy"
    """No known problem."""
    QUARANTINED = "quarantined"
    """It gets no tasks after errors. Each further quarantine lasts longer."""
    PROBATION = "probation"
    """The quarantine is over. A burn-in computation decides what comes next."""
    RETIRED = "retired"
    """Quarantined too often. It gets no tasks until a person undrains it."""


@dataclass(frozen=True, slots=True)
class CountedError:
    """An error that does not alone cause a quarantine."""

    error_class: str
    at: datetime
    source: str = ""
    """Errors from the same source count once, so a task that fails again and again counts once. Empty: unknown."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The state and the errors of one device; `NO_ERRORS` for a device that never had an error."""

    state: HealthState = HealthState.HEALTHY
    strikes: int = 0
    """Number of quarantines since the record was last cleared."""
    since: datetime | None = None
    """When this state began."""
    until: datetime | None = None
    """The end of a quarantine."""
    cause: str = ""
    """The cause of the last quarantine."""
    errors: tuple[CountedError, ...] = ()
    """Recent errors."""


NO_ERRORS = DeviceHealth()


def last_change(health: DeviceHealth, default: datetime) -> datetime:
    """The time of the newest change that the record shows; the default if it shows none.

    >>> from hetero_airflow.testing import EPOCH
    >>> last_change(DeviceHealth(errors=(CountedError("ecc", EPOCH),)), EPOCH) == EPOCH
    True
    """
    times = [error.at for error in health.errors]
    return max((*times, *(time for time in (health.since, health.until) if time is not None)), default=default)
