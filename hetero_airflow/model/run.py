"""Runs that have ended, from which estimates are learned, and the usual cost of a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.request import Alternative


class RunEnd(StrEnum):
    """The state of a task when it gave its devices back."""

    FINISHED = "finished"
    """Its work is done."""
    PAUSED = "paused"
    """Its work continues later: it was preempted, deferred or rescheduled."""
    FAILED = "failed"
    """It raised an error, was stopped, or was no longer needed."""
    LOST = "lost"
    """Its process or its worker disappeared."""


@dataclass(frozen=True, slots=True)
class Run:
    """A lease that ended after its task ran under it."""

    sequence: int
    """Sequence of the first snapshot after the end. It grows from run to run; runs that ended together share one."""
    request_id: str
    task: TaskName
    asked: Alternative
    """The first alternative of its request."""
    device_class: str
    devices: int
    """Number of devices of that class that it held; for a CPU, of cores."""
    held_s: float
    """From the grant to the end; includes the start of the process."""
    end: RunEnd
    ended_at: datetime
    attained_service_s: Mapping[str, float] = field(default_factory=dict)
    """Device class → seconds for which the same request held devices before."""


def usual_restart_s(devices: int) -> float:
    """The time from an interruption until a run is where it was, for its number of devices.

    7 s for one device, 30 s for up to 8, 60 s for more: save, start and restore of measured training jobs.

    >>> [usual_restart_s(devices) for devices in (1, 8, 9)]
    [7.0, 30.0, 60.0]
    """
    return 7.0 if devices <= 1 else 30.0 if devices <= 8 else 60.0
