"""The port of reported speeds, and how reports add up.

A running task reports again and again what it has done since it started. Each report counts only with what the one
before did not have. So a report can be written twice, by another scheduler or after a restart.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.model.run import MeasuredSpeed

MAX_COUNTED = 64
"""Leases of one pair of which it is known how much was counted; those that reported last."""


@dataclass(frozen=True, slots=True)
class LeaseSpeed:
    """What a task did under a lease since it started."""

    lease_id: str
    measured: MeasuredSpeed


@dataclass(frozen=True, slots=True)
class SpeedRecord:
    """What is known of a task on a device class."""

    measured: MeasuredSpeed
    counted: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Lease id → steps and seconds that `measured` has of it."""


def with_report(before: SpeedRecord | None, report: LeaseSpeed, now: datetime) -> SpeedRecord | None:
    """The record with what is new in a report; None if nothing is. Ends that are over are left out.

    >>> from hetero_airflow.testing import EPOCH as now
    >>> from hetero_airflow.testing import a_speed
    >>> first = with_report(None, LeaseSpeed("lease-1", a_speed(2.0, steps=120, seconds=60.0)), now)
    >>> with_report(first, LeaseSpeed("lease-1", a_speed(2.0, steps=120, seconds=60.0)), now) is None
    True
    >>> with_report(first, LeaseSpeed("lease-1", a_speed(2.0, steps=180, seconds=90.0)), now).measured.steps
    180
    """
    measured = report.measured
    total = (measured.steps, measured.seconds)
    if before is None:
        return SpeedRecord(measured, {report.lease_id: total})
    steps, seconds = before.counted.get(report.lease_id, (0, 0.0))
    if measured.seconds <= seconds:
        return None
    newer = replace(measured, steps=max(0, measured.steps - steps), seconds=measured.seconds - seconds)
    counted = {lease_id: part for lease_id, part in before.counted.items() if lease_id != report.lease_id}
    newest = dict(list({**counted, report.lease_id: total}.items())[-MAX_COUNTED:])
    ends = {lease_id: at for lease_id, at in {**before.measured.ends, **measured.ends}.items() if at > now}
    combined = before.measured.combined(newer)
    return SpeedRecord(
        replace(combined, ends={lease_id: ends[lease_id] for lease_id in newest if lease_id in ends}), newest
    )
