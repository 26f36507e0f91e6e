"""Runs as the store has them: how they went on and ended, their speeds, and the usual cost of a restart."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.request import Alternative

MAX_STEPS = 10**15
"""More steps or seconds of one pair are not counted."""

REMEMBERED_S = 86400.0
"""Older measurements count at most as if they had taken this time, so that a pair follows a task that changed."""


MAX_TRANSITIONS = 50
"""The newest transitions of a request that are kept."""


class Transition(NamedTuple):
    """A step in the life of a run."""

    at: datetime
    event: str
    """What was found out: the name of a class of `executor.events`."""
    phase: str
    """Where the run is since then: a `Phase`."""
    text: str = ""
    """Why it ended, if this ended it."""


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
class EndedRun:
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


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """What a request has had before it waits again, under all its leases."""

    submitted_at: datetime
    """The first submission."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Device class → seconds for which the request held devices."""
    interruptions: int = 0
    """How often it lost its devices and went on later."""

    @classmethod
    def of(cls, submitted_at: datetime, runs: Iterable[EndedRun]) -> "ServiceRecord":
        """The record of a request with these runs. What is not known to go on later does not count."""
        interrupted = [run for run in runs if run.end in (RunEnd.PAUSED, RunEnd.LOST)]
        seconds: defaultdict[str, float] = defaultdict(float)
        for run in interrupted:
            seconds[run.device_class] += run.held_s
        return cls(submitted_at, dict(seconds), len(interrupted))


@dataclass(frozen=True, slots=True)
class TimeShares:
    """What the time of a loop was spent on; the parts add up to 1.

    >>> str(TimeShares(data=0.306, compute=0.664, save=0.03))
    'data 31 %, compute 66 %, save 3 %'
    """

    data: float
    """Waiting for the next batch."""
    compute: float
    save: float
    """Waiting until the state is copied."""

    def __str__(self) -> str:
        return f"data {self.data:.0%}, compute {self.compute:.0%}, save {self.save:.0%}".replace("%", " %")

    def mixed(self, other: "TimeShares", part: float) -> "TimeShares":
        """The shares of both times together, of which the other one is this part."""
        return TimeShares(*(a + part * (b - a) for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """What the runs of a task on a device class reported so far."""

    task: TaskName
    device_class: str
    log_speed: float
    """Natural logarithm of steps per second of the whole run, with all its devices."""
    deviation: float
    """Standard deviation of `log_speed`: 0.05 is 5 %."""
    steps: int
    """Steps that were counted."""
    seconds: float
    """Seconds in which they were done, without start-up, restores, saves and stalls."""
    shares: TimeShares | None = None
    """What these seconds were spent on; None if the task does not say."""
    ends: Mapping[str, datetime] = field(default_factory=dict)
    """Lease id → when its task will have done its last step at its present speed; of runs that say how many there
    are."""

    def combined(self, newer: "MeasuredSpeed") -> "MeasuredSpeed":
        """This measurement and a newer one of the same pair, weighted by their seconds.

        >>> slow = MeasuredSpeed(("dag", "task"), "nvidia/k80", 0.0, 0.02, 60, 60.0)
        >>> both = slow.combined(replace(slow, log_speed=0.2, steps=70))
        >>> round(both.log_speed, 2), round(both.deviation, 2), both.steps, both.seconds
        (0.1, 0.1, 130, 120.0)
        """
        before_s = min(self.seconds, REMEMBERED_S)
        part = newer.seconds / (before_s + newer.seconds)
        middle = self.log_speed + part * (newer.log_speed - self.log_speed)
        between = part * (1 - part) * (newer.log_speed - self.log_speed) ** 2
        within = part * newer.deviation**2 + (1 - part) * self.deviation**2
        both = self.shares and newer.shares and self.shares.mixed(newer.shares, part)
        return replace(
            newer,
            log_speed=middle,
            deviation=(within + between) ** 0.5,
            steps=min(self.steps + newer.steps, MAX_STEPS),
            seconds=min(self.seconds + newer.seconds, float(MAX_STEPS)),
            shares=both or newer.shares or self.shares,
        )


def usual_restart_s(devices: int) -> float:
    """The time from an interruption until a run is where it was, for its number of devices.

    7 s for one device, 30 s for up to 8, 60 s for more: save, start and restore of measured training jobs.

    >>> [usual_restart_s(devices) for devices in (1, 8, 9)]
    [7.0, 30.0, 60.0]
    """
    return 7.0 if devices <= 1 else 30.0 if devices <= 8 else 60.0
