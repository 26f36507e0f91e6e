"""What is believed of tasks and devices beyond what they ask: speeds, amounts of work, the mix of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

from hetero_airflow.model.request import Alternative
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares

MIN_SPEED, MAX_SPEED = 1e-9, 1e12
"""Speeds outside are not believed: what they would say of a duration is no help to anyone."""

MAX_DURATION_S = 10 * 365 * 86400.0
"""No estimate of a duration is longer."""

USAGE_HALF_LIFE_S = 86400.0
"""After so long, what a DAG has held counts half: a day's work is balanced within days."""

_NORMAL = NormalDist()
_TENTH_QUANTILE = _NORMAL.inv_cdf(0.9)
"""Standard deviations from the middle beyond which a tenth lies."""

_CERTAIN = 1e-9
_ONE_OF_A_MILLION = 1e-6

TaskName = tuple[str, str]
"""DAG id and task id: runs of one task are taken to be alike."""


class Interval(NamedTuple):
    """A quantity that is not known exactly: nine of ten lie above `low`, half above `middle`, a tenth above `high`."""

    low: float
    middle: float
    high: float

    def remaining_after(self, done: float) -> Interval | None:
        """What is left where so much is done; None where no more than one of a million would go on for so long.

        The quantity is taken to be log-normal on either side of its middle, given that it is more than `done`.

        >>> run_s = Interval(50.0, 100.0, 200.0)
        >>> [round(part) for part in run_s.remaining_after(0)], [round(part) for part in run_s.remaining_after(150)]
        ([50, 100, 200], [6, 42, 145])
        >>> run_s.remaining_after(100_000) is None
        True
        """
        below, above = (max(math.log(b) - math.log(a), _CERTAIN) / _TENTH_QUANTILE for a, b in pairwise(self))
        so_far = math.log(done) - math.log(self.middle) if done > 0 else -math.inf
        more = 1 - _NORMAL.cdf(so_far / (above if so_far > 0 else below))
        if more < _ONE_OF_A_MILLION:
            return None
        left = []
        for part in (0.1, 0.5, 0.9):
            deviation = _NORMAL.inv_cdf(1 - (1 - part) * more)
            whole = self.middle * math.exp(deviation * (above if deviation > 0 else below))
            left.append(max(whole - done, 0.0))
        return Interval(*left)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Immutable. What is absent is not known; a policy must do without it.

    A task's unit of work is its own (steps, or runs): only speeds and works of one task can be combined.

    >>> train = ("dag", "train")
    >>> known = Estimates({train: {"nvidia/v100": 2.0, "nvidia/k80": 0.5}}, {train: Interval(50, 60, 90)})
    >>> known.duration_s(train, "nvidia/k80")
    Interval(low=100.0, middle=120.0, high=180.0)
    >>> known.duration_s(("dag", "other"), "nvidia/k80") is None
    True
    """

    speeds: Mapping[TaskName, Mapping[str, float]] = field(default_factory=dict)
    """Task → device class → units of work a second, of a run with all the devices that it asks for."""
    works: Mapping[TaskName, Interval] = field(default_factory=dict)
    """Task → units of work of a run."""
    finished_s: tuple[float, ...] = ()
    """How long ended runs of any task would have taken on the fastest device class that they know, ascending: what
    is known of the length of a run of which nothing else is known."""
    mix: tuple[tuple[Alternative, float], ...] = ()
    """What is asked for, and how often: each first alternative's part of all requests, summing to 1."""
    default_speeds: Mapping[str, float] = field(default_factory=dict)
    """Device class → speed relative to others, from the makers' data sheets and from what tasks of several classes have
    shown: for tasks that never ran there."""
    spread: Mapping[TaskName, float] = field(default_factory=dict)
    """Task → what remains of its speed where its gang is on several hosts, 0 to 1; absent where it is not known."""
    edges: Mapping[TaskName, tuple[TaskName, ...]] = field(default_factory=dict)
    """Task → those that come right after it in its DAG; absent where there are none or they are not known."""
    used_device_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """DAG id → device class → device-seconds of runs that have ended, decayed until `used_at`, see `decayed`."""
    used_at: datetime | None = None
    """None where no run has ended yet."""
    shares: TeamShares = NO_TEAM_SHARES
    """Who is entitled to how much, as configured."""

    def speed(self, task: TaskName, device_class: str) -> float | None:
        """Units a second on that class; None where nothing at all is known."""
        speed = self.speeds.get(task, {}).get(device_class)
        return None if speed is None else min(max(speed, MIN_SPEED), MAX_SPEED) if speed > 0 else 0.0

    def relative_speeds(self, task: TaskName, device_classes: frozenset[str]) -> dict[str, float]:
        """Class → speed on it by the fastest of the given classes, 0 to 1; where no speed is known, 1 for all.

        A class without a measured speed takes its relation to the measured ones from the data sheets.
        """
        known = {name: speed for name in sorted(device_classes) if (speed := self.speed(task, name)) is not None}
        if not known:
            known = {name: self.default_speeds.get(name, 0.0) for name in sorted(device_classes)}
            if not known or not all(known.values()):
                return dict.fromkeys(sorted(device_classes), 1.0)
        ratios = [known[n] / self.default_speeds[n] for n in known if known[n] and self.default_speeds.get(n)]
        unit = sum(ratios) / len(ratios) if ratios else 0.0
        fallback = max(known.values())
        for name in device_classes - known.keys():
            known[name] = min(self.default_speeds.get(name, 0.0) * unit, fallback) or fallback
        top = max(known.values())
        return {name: known[name] / top if top else 1.0 for name in sorted(device_classes)}

    def remaining_s(
        self, task: TaskName, device_class: str, held_s: float, attained_service_s: Mapping[str, float]
    ) -> Interval | None:
        """Seconds for which a run on that class goes on; None if its duration is not known, or long exceeded.

        :param held_s: for how long it has held its devices there
        :param attained_service_s: device class → seconds that it ran on others before

        >>> known = Estimates({("dag", "train"): {"nvidia/v100": 2.0}}, {("dag", "train"): Interval(100, 200, 400)})
        >>> [round(part) for part in known.remaining_s(("dag", "train"), "nvidia/v100", 30.0, {"nvidia/v100": 120.0})]
        [6, 42, 145]
        """
        work, speed = self.works.get(task), self.speed(task, device_class)
        if work is None or not speed or min(work) <= 0:
            return None
        done = held_s * speed + math.fsum(s * (self.speed(task, name) or 0.0) for name, s in attained_service_s.items())
        left = work.remaining_after(max(done, 0.0))
        return None if left is None else Interval(*(min(part / speed, MAX_DURATION_S) for part in left))

    def duration_s(self, task: TaskName, device_class: str) -> Interval | None:
        """Seconds that a whole run takes on that class, at most `MAX_DURATION_S`; None if it is not known."""
        work, speed = self.works.get(task), self.speed(task, device_class)
        if work is None or not speed:
            return None
        return Interval(*(min(max(part / speed, 0.0), MAX_DURATION_S) for part in work))


NO_ESTIMATES = Estimates()


def decayed(amount: float, since: datetime, until: datetime) -> float:
    """What is left of an amount of use by then, by `USAGE_HALF_LIFE_S`."""
    return float(amount * 0.5 ** (max((until - since).total_seconds(), 0.0) / USAGE_HALF_LIFE_S))
