"""One stay of a task on devices that has ended: what estimates are learned from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.request import Alternative


class RunEnd(StrEnum):
    """How a task stood when it gave its devices back."""

    FINISHED = "finished"
    """Its work was done."""
    PAUSED = "paused"
    """Not done, and to go on later: it was preempted, deferred or rescheduled."""
    FAILED = "failed"
    """It raised, was stopped, or nobody wanted it any more."""
    LOST = "lost"
    """Its process or its worker went away."""


@dataclass(frozen=True, slots=True)
class Run:
    """A lease that ended after its task had run under it."""

    sequence: int
    """Of the snapshot that showed the end first; grows from run to run, equal where several ended at once."""
    request_id: str
    task: TaskName
    asked: Alternative
    """The first alternative of its request."""
    device_class: str
    devices: int
    """How many of that class it held; of a CPU, the cores."""
    held_s: float
    """From the grant to the end, starting the process included."""
    end: RunEnd
    ended_at: datetime
    attained_service_s: Mapping[str, float] = field(default_factory=dict)
    """Device class → seconds for which the same request had held its devices before."""
