"""When a device is taken out after errors, and when it comes back. Pure.

healthy → (errors of a class at its rate) → quarantined → (time) → probation → (a burn-in passes) → healthy; a burn-in
that fails, or another error, quarantines again for longer; where none can be run, probation ends without one. That
quarantines grow and end by themselves is the circuit breaker's way (M. Nygard, Release It!, 2nd ed., section 5.2: open,
half-open, closed); that a device is out for good in the end is ours, since a device that is sick every other day costs
more than it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hetero_airflow.health.error_classes import ErrorClass
from hetero_airflow.model.device_health import NO_ERRORS, CountedError, DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import Snapshot

TRANSITIONS: dict[tuple[HealthState, HealthState], str] = {
    (HealthState.HEALTHY, HealthState.QUARANTINED): "errors of a class at its rate",
    (HealthState.HEALTHY, HealthState.RETIRED): "errors again, for the last time",
    (HealthState.QUARANTINED, HealthState.PROBATION): "its time is over",
    (HealthState.PROBATION, HealthState.HEALTHY): "a burn-in passed, or can't be run, or a person undrained it",
    (HealthState.PROBATION, HealthState.QUARANTINED): "a burn-in failed, or another error",
    (HealthState.PROBATION, HealthState.RETIRED): "a burn-in failed, for the last time",
    (HealthState.QUARANTINED, HealthState.HEALTHY): "a person undrained it",
    (HealthState.RETIRED, HealthState.HEALTHY): "a person undrained it",
}
"""Every change of state that there is, and its cause."""


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """How many errors of a class, within how long, take a device out."""

    count: int
    window: timedelta


ERROR_RATES: Mapping[ErrorClass, ErrorRate] = {
    ErrorClass.FATAL: ErrorRate(1, timedelta(0)),
    ErrorClass.COUNTED: ErrorRate(3, timedelta(hours=1)),
    ErrorClass.TASK: ErrorRate(2, timedelta(hours=1)),
}
"""A class that is not here never counts."""

QUARANTINE_TIMES = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
"""The first, second, … quarantine; later ones are as long as the last."""

MAX_STRIKES = 6
"""The sixth time that a device would be quarantined, it is retired."""

FORGIVEN_AFTER = timedelta(days=7)
"""A device that was healthy for so long starts anew with the shortest quarantine."""


@dataclass(frozen=True, slots=True)
class ObservedError:
    """An error that says something of a device."""

    device_id: str
    error_class: ErrorClass
    text: str
    at: datetime
    source: str = ""
    """Who says so, where several words of one count once: a task."""


def after_error(health: DeviceHealth, error: ObservedError) -> DeviceHealth:
    """The health after an error; the same object where the error changes nothing.

    An error during a quarantine is no further strike, but the quarantine's time begins again.

    >>> from hetero_airflow.testing import EPOCH
    >>> xid = ObservedError("GPU-0", ErrorClass.FATAL, "XID 79, GPU has fallen off the bus", EPOCH)
    >>> ignored = replace(xid, error_class=ErrorClass.APPLICATION)
    >>> after_error(NO_ERRORS, xid).state, after_error(NO_ERRORS, ignored) is NO_ERRORS
    (<HealthState.QUARANTINED: 'quarantined'>, True)
    """
    rate = ERROR_RATES.get(error.error_class)
    if rate is None or health.state is HealthState.RETIRED:
        return health
    errors = _with_error(health.errors, error)
    begin = error.at - rate.window
    if sum(one.error_class == error.error_class and one.at >= begin for one in errors) < rate.count:
        return replace(health, errors=errors)
    if health.state is HealthState.QUARANTINED:
        end = error.at + _quarantine_time(health.strikes)
        return replace(health, until=max(end, health.until or end), errors=())
    return _taken_out(health, error.text, error.at)


def after_time(health: DeviceHealth, now: datetime) -> DeviceHealth:
    """The health as time alone changes it; the same object where it does not."""
    if health.state is HealthState.QUARANTINED and health.until is not None and health.until <= now:
        return replace(health, state=HealthState.PROBATION, since=now, until=None)
    if health.state is HealthState.HEALTHY and health != NO_ERRORS:
        longest = max(rate.window for rate in ERROR_RATES.values())
        errors = tuple(error for error in health.errors if now - error.at <= longest)
        is_forgiven = health.since is None or now - health.since >= FORGIVEN_AFTER
        if is_forgiven and not errors:
            return NO_ERRORS
        if len(errors) < len(health.errors):
            return replace(health, errors=errors)
    return health


def after_burn_in(health: DeviceHealth, failure: str, now: datetime) -> DeviceHealth:
    """The health after a burn-in, which passed if `failure` is empty; only a device on probation changes by it."""
    if health.state is not HealthState.PROBATION:
        return health
    if failure:
        return _taken_out(health, failure, now)
    return replace(health, state=HealthState.HEALTHY, since=now, errors=())


def hold_of(worker_id: str, device_id: str, health: DeviceHealth) -> Hold | None:
    """What the store is told, so that nobody leases the device; None for a healthy one."""
    if health.state is HealthState.HEALTHY or health.since is None:
        return None
    if health.state is HealthState.RETIRED:
        returns = f"a person runs `airflow hetero undrain {worker_id}/{device_id}`, after {health.strikes} times out"
    elif health.until is not None:
        returns = f"a burn-in passes, where one can be run, from {health.until:%Y-%m-%d %H:%M:%S} UTC on"
    else:
        returns = "a burn-in passes, where one can be run, once nothing runs on it"
    return Hold(worker_id, device_id, HoldKind.QUARANTINED, health.cause, health.since, returns, health.until)


def leases_to_migrate(snapshot: Snapshot) -> tuple[tuple[Lease, Hold], ...]:
    """The leases whose tasks shall save and go on elsewhere, and the bar that says so; those told already are left out.

    The executor preempts them as it does for another task. By the order of their tokens.
    """
    moving: dict[str, list[Hold]] = {}
    for bar in snapshot.holds:
        if bar.moves:
            moving.setdefault(bar.worker_id, []).append(bar)
    if not moving:
        return ()
    devices = {(w.id, device.id): device for w in snapshot.workers if w.id in moving for device in w.devices}
    found = []
    for lease in snapshot.leases:
        if lease.state not in (LeaseState.GRANTED, LeaseState.ACTIVE):
            continue
        held = [devices[key] for claim in lease.claims if (key := (lease.worker_id, claim.device_id)) in devices]
        bars = [bar for device in held for bar in holds_on(device, moving[lease.worker_id])]
        if bars:
            found.append((lease, bars[0]))
    return tuple(found)


def _with_error(errors: tuple[CountedError, ...], error: ObservedError) -> tuple[CountedError, ...]:
    new = CountedError(error.error_class, error.at, error.source)
    kept = (e for e in errors if not (new.source and (e.error_class, e.source) == (new.error_class, new.source)))
    oldest = error.at - max(rate.window for rate in ERROR_RATES.values())
    return (*(one for one in kept if one.at >= oldest), new)


def _taken_out(health: DeviceHealth, cause: str, at: datetime) -> DeviceHealth:
    strikes = health.strikes + 1
    if strikes >= MAX_STRIKES:
        return DeviceHealth(HealthState.RETIRED, strikes, at, None, cause)
    return DeviceHealth(HealthState.QUARANTINED, strikes, at, at + _quarantine_time(strikes), cause)


def _quarantine_time(strikes: int) -> timedelta:
    return QUARANTINE_TIMES[min(strikes, len(QUARANTINE_TIMES)) - 1]
