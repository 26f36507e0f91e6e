"""Rules for taking a device out of scheduling after errors, and for letting it back in. Pure.

healthy → (errors reach their class's rate) → quarantined → (time passes) → probation → (a burn-in passes) → healthy.
A burn-in that fails, or another error, starts a longer quarantine. Where no burn-in can run, probation ends without
one. Quarantines that grow and end by themselves follow the circuit breaker pattern (M. Nygard, Release It!, 2nd ed.,
section 5.2: open, half-open, closed). Deviation: a device that fails again and again is retired for good, because it
costs more than it gives.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from hetero_airflow.health.error_classes import ErrorClass
from hetero_airflow.model.devices.health import NO_ERRORS, CountedError, DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import Snapshot

TRANSITIONS: dict[tuple[HealthState, HealthState], str] = {
    (HealthState.HEALTHY, HealthState.QUARANTINED): "errors reached the rate of their class",
    (HealthState.HEALTHY, HealthState.RETIRED): "errors reached the rate of their class for the last time",
    (HealthState.QUARANTINED, HealthState.PROBATION): "the quarantine's time is over",
    (HealthState.PROBATION, HealthState.HEALTHY): "a burn-in passed or can't run, or a person undrained the device",
    (HealthState.PROBATION, HealthState.QUARANTINED): "a burn-in failed, or another error came",
    (HealthState.PROBATION, HealthState.RETIRED): "a burn-in failed for the last time",
    (HealthState.QUARANTINED, HealthState.HEALTHY): "a person undrained the device",
    (HealthState.RETIRED, HealthState.HEALTHY): "a person undrained the device",
}
"""Every possible change of state, and its cause."""


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """A device is taken out after `count` errors of a class within `window`."""

    count: int
    window: timedelta


ERROR_RATES: Mapping[ErrorClass, ErrorRate] = {
    ErrorClass.FATAL: ErrorRate(1, timedelta(0)),
    ErrorClass.COUNTED: ErrorRate(3, timedelta(hours=1)),
    ErrorClass.TASK: ErrorRate(2, timedelta(hours=1)),
}
"""Error class → rate. A class without a row never counts."""

_LONGEST_WINDOW = max(rate.window for rate in ERROR_RATES.values())

QUARANTINE_TIMES = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
"""Length of the first, second, … quarantine; later ones are as long as the last."""

MAX_STRIKES = 6
"""At this number of strikes a device is retired instead of quarantined."""

FORGIVEN_AFTER = timedelta(days=7)
"""After this time without errors a device starts again with the shortest quarantine."""


@dataclass(frozen=True, slots=True)
class ObservedError:
    """An error that a driver or a task reports of a device."""

    device_id: str
    """Empty: the whole worker."""
    error_class: ErrorClass
    text: str
    at: datetime
    source: str = ""
    """Who reports it, if several reports of one source count once: a task. Empty: each error counts."""


def after_error(health: DeviceHealth, error: ObservedError) -> DeviceHealth:
    """The health after an error; the same object if the error changes nothing.

    An error during a quarantine is not another strike, but it restarts the quarantine's time.

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
    if sum(e.error_class == error.error_class and e.at >= begin for e in errors) < rate.count:
        return replace(health, errors=errors)
    if health.state is HealthState.QUARANTINED:
        end = error.at + _quarantine_time(health.strikes)
        return replace(health, until=max(end, health.until or end), errors=())
    return _taken_out(health, error.text, error.at)


def after_time(health: DeviceHealth, now: datetime) -> DeviceHealth:
    """The health after time has passed; the same object if nothing changes."""
    if health.state is HealthState.QUARANTINED and health.until is not None and health.until <= now:
        return replace(health, state=HealthState.PROBATION, since=now, until=None)
    if health.state is HealthState.HEALTHY and health != NO_ERRORS:
        errors = tuple(error for error in health.errors if now - error.at <= _LONGEST_WINDOW)
        is_forgiven = health.since is None or now - health.since >= FORGIVEN_AFTER
        if is_forgiven and not errors:
            return NO_ERRORS
        if len(errors) < len(health.errors):
            return replace(health, errors=errors)
    return health


def after_burn_in(health: DeviceHealth, failure: str, now: datetime) -> DeviceHealth:
    """The health after a burn-in; an empty `failure` means that it passed. Only a device on probation changes."""
    if health.state is not HealthState.PROBATION:
        return health
    if failure:
        return _taken_out(health, failure, now)
    return replace(health, state=HealthState.HEALTHY, since=now, errors=())


def hold_of(worker_id: str, device_id: str, health: DeviceHealth) -> Hold | None:
    """The hold that keeps a device, or a worker (an empty id), from being leased; None if it is healthy."""
    if health.state is HealthState.HEALTHY or health.since is None:
        return None
    if health.state is HealthState.RETIRED:
        target = f"{worker_id}/{device_id}" if device_id else worker_id
        returns = f"a person runs `airflow hetero undrain {target}`, after {health.strikes} times out"
    elif not device_id:
        returns = "its time is over" if health.until is None else f"it is {health.until:%Y-%m-%d %H:%M:%S} UTC"
    elif health.until is not None:
        returns = f"a burn-in passes, where one can be run, from {health.until:%Y-%m-%d %H:%M:%S} UTC on"
    else:
        returns = "a burn-in passes, where one can be run, once nothing runs on it"
    return Hold(worker_id, device_id, HoldKind.QUARANTINED, health.cause, health.since, returns, health.until)


def leases_to_migrate(snapshot: Snapshot) -> tuple[tuple[Lease, Hold], ...]:
    """The leases whose tasks must save and continue elsewhere, each with the hold that says so, in token order.

    A lease that is preempted already is left out. The executor preempts these as it does for another task.
    """
    holds: dict[str, list[Hold]] = {}
    for hold in snapshot.holds:
        if hold.moves:
            holds.setdefault(hold.worker_id, []).append(hold)
    if not holds:
        return ()
    devices = {(w.id, device.id): device for w in snapshot.workers if w.id in holds for device in w.devices}
    migrations = []
    for lease in snapshot.leases:
        if lease.state not in (LeaseState.GRANTED, LeaseState.ACTIVE):
            continue
        leased = [devices[key] for claim in lease.claims if (key := (lease.worker_id, claim.device_id)) in devices]
        causes = [hold for device in leased for hold in holds_on(device, holds[lease.worker_id])]
        if causes:
            migrations.append((lease, causes[0]))
    return tuple(migrations)


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """An event for the store: a change of a device's health, based on its health in the store at that moment.

    No other writer comes in between, so errors that several schedulers and API servers report at once all count.
    """

    worker_id: str
    device_id: str
    change: Callable[[DeviceHealth], tuple[DeviceHealth, Hold | None]]
    """Health before → health after, and the hold that it causes; pure. The same health means the same hold."""


def error_changes(worker_id: str, errors: Iterable[ObservedError]) -> list[HealthChanged]:
    """One event for each device of the worker that had an error which counts.

    >>> from hetero_airflow.testing import EPOCH
    >>> (event,) = error_changes("worker-a", [ObservedError("GPU-0", ErrorClass.FATAL, "XID 79", EPOCH)])
    >>> health, hold = event.change(NO_ERRORS)
    >>> health.state, hold.cause
    (<HealthState.QUARANTINED: 'quarantined'>, 'XID 79')
    """
    by_device: dict[str, list[ObservedError]] = {}
    for error in errors:
        if error.error_class in ERROR_RATES:
            by_device.setdefault(error.device_id, []).append(error)
    return [
        _health_changed(worker_id, device_id, partial(_after_errors, errors=device_errors))
        for device_id, device_errors in by_device.items()
    ]


def burn_in_change(worker_id: str, device_id: str, failure: str, now: datetime) -> HealthChanged:
    """The event that ends a device's probation. An empty `failure`: a burn-in passed, or none can run."""
    return _health_changed(worker_id, device_id, lambda health: after_burn_in(health, failure, now))


def time_change(worker_id: str, device_id: str, now: datetime) -> HealthChanged:
    """The event for what ends with time: a quarantine, or the window in which old errors count."""
    return _health_changed(worker_id, device_id, lambda health: after_time(health, now))


def _after_errors(health: DeviceHealth, errors: Iterable[ObservedError]) -> DeviceHealth:
    for error in errors:
        health = after_error(after_time(health, error.at), error)
    return health


def _health_changed(worker_id: str, device_id: str, after: Callable[[DeviceHealth], DeviceHealth]) -> HealthChanged:
    def change(before: DeviceHealth) -> tuple[DeviceHealth, Hold | None]:
        health = after(before)
        return health, hold_of(worker_id, device_id, health)

    return HealthChanged(worker_id, device_id, change)


def _with_error(errors: tuple[CountedError, ...], error: ObservedError) -> tuple[CountedError, ...]:
    new = CountedError(error.error_class, error.at, error.source)
    other_errors = (
        e for e in errors if not (new.source and (e.error_class, e.source) == (new.error_class, new.source))
    )
    return (*(e for e in other_errors if e.at >= error.at - _LONGEST_WINDOW), new)


def _taken_out(health: DeviceHealth, cause: str, at: datetime) -> DeviceHealth:
    strikes = health.strikes + 1
    if strikes >= MAX_STRIKES:
        return DeviceHealth(HealthState.RETIRED, strikes, at, None, cause)
    return DeviceHealth(HealthState.QUARANTINED, strikes, at, at + _quarantine_time(strikes), cause)


def _quarantine_time(strikes: int) -> timedelta:
    return QUARANTINE_TIMES[min(strikes, len(QUARANTINE_TIMES)) - 1]
