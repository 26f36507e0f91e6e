"""Estimates of tasks and devices: speeds, amounts of work, the request mix."""

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
"""Speeds outside this range are clamped; they would give useless durations."""

MAX_DURATION_S = 10 * 365 * 86400.0
"""The longest estimate of a duration."""

REPORTED_END_FACTOR = 1.15
"""The rest of a run that reports its steps is assumed to take this many times shorter or longer, in one of ten runs
each: its speed changes, and it saves after its last step."""

USAGE_HALF_LIFE_S = 86400.0
"""After this time, past usage of a DAG counts half. So a day of usage is balanced within days."""

_NORMAL = NormalDist()
_TENTH_QUANTILE = _NORMAL.inv_cdf(0.9)
"""Standard deviations from the median to the outer tenth of the distribution."""

_CERTAIN = 1e-9
_ONE_OF_A_MILLION = 1e-6

TaskName = tuple[str, str]
"""DAG id and task id. Runs of one task are assumed to be alike."""


class Interval(NamedTuple):
    """The 10 %, 50 % and 90 % quantiles of a quantity that is not known exactly."""

    low: float
    middle: float
    high: float

    @property
    def log_deviation(self) -> float:
        """The standard deviation of the quantity's logarithm, over both sides; every quantile must be above 0.

        >>> round(Interval(50.0, 100.0, 200.0).log_deviation, 3)
        0.541
        """
        return (math.log(self.high) - math.log(self.low)) / (2 * _TENTH_QUANTILE)

    def remaining_after(self, done: float) -> "Interval | None":
        """What remains after `done`; None if at most one run in a million takes longer than `done`.

        The quantity is assumed to be log-normal on each side of its median, given that it exceeds `done`.

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
        remaining = []
        for quantile in (0.1, 0.5, 0.9):
            deviation = _NORMAL.inv_cdf(1 - (1 - quantile) * more)
            whole = self.middle * math.exp(deviation * (above if deviation > 0 else below))
            remaining.append(max(whole - done, 0.0))
        return Interval(*remaining)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Immutable. An absent value is unknown, and a policy must work without it.

    Each task has its own unit of work (steps, or runs): only speeds and works of the same task can be combined.

    >>> train = ("dag", "train")
    >>> known = Estimates({train: {"nvidia/v100": 2.0, "nvidia/k80": 0.5}}, {train: Interval(50, 60, 90)})
    >>> known.duration_s(train, "nvidia/k80")
    Interval(low=100.0, middle=120.0, high=180.0)
    >>> known.duration_s(("dag", "other"), "nvidia/k80") is None
    True
    """

    speeds: Mapping[TaskName, Mapping[str, float]] = field(default_factory=dict)
    """Task → device class → units of work per second, for a run with all devices that it asks for."""
    works: Mapping[TaskName, Interval] = field(default_factory=dict)
    """Task → units of work in a run."""
    finished_s: tuple[float, ...] = ()
    """Durations of ended runs of all tasks on their fastest known device class, ascending: the only estimate for a task
    without its own."""
    mix: tuple[tuple[Alternative, float], ...] = ()
    """The request mix: first alternatives with their parts of all requests. The parts sum to 1."""
    default_speeds: Mapping[str, float] = field(default_factory=dict)
    """Device class → speed relative to others, for tasks that never ran there. The sources are the makers' data sheets
    and tasks that ran on several classes."""
    edges: Mapping[TaskName, tuple[TaskName, ...]] = field(default_factory=dict)
    """Task → its direct downstream tasks in the DAG; absent if there are none or they are unknown."""
    used_device_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """DAG id → device class → device-seconds of ended runs, decayed until `used_at`; see `decayed`."""
    used_at: datetime | None = None
    """None if no run has ended yet."""
    shares: TeamShares = NO_TEAM_SHARES
    """The configured shares of the teams."""
    speed_deviations: Mapping[TaskName, Mapping[str, float]] = field(default_factory=dict)
    """Task → device class → standard deviation of the logarithm of its speed relative to the fastest class on which the
    task was measured; absent if the task reports no steps."""
    reported_ends: Mapping[str, datetime] = field(default_factory=dict)
    """Lease id → when its task will have done its last step, as it reported; absent if it does not say how many."""

    def speed(self, task: TaskName, device_class: str) -> float | None:
        """Units of work per second on that class; None if unknown."""
        speed = self.speeds.get(task, {}).get(device_class)
        return None if speed is None else min(max(speed, MIN_SPEED), MAX_SPEED) if speed > 0 else 0.0

    def top_speed(self, task: TaskName) -> float | None:
        """Units of work per second on the task's fastest class with a known speed; None if none is above 0."""
        speeds = (self.speed(task, name) for name in self.speeds.get(task, ()))
        return max(filter(None, speeds), default=None)

    def relative_speeds(self, task: TaskName, device_classes: frozenset[str]) -> dict[str, float]:
        """Class → speed relative to the fastest of the given classes, 0 to 1; 1 for all if no speed is known.

        A class without a measured speed gets one from the data sheets, relative to the measured classes. A speed that
        is uncertain counts as one standard deviation higher. So a class that may be better is tried, and then measured
        (optimism in the face of uncertainty: Auer, Cesa-Bianchi and Fischer, Machine Learning 47, 2002).

        >>> train = ("dag", "train")
        >>> estimates = Estimates({train: {"a": 2.0, "b": 1.5}}, speed_deviations={train: {"a": 0.0, "b": 0.5}})
        >>> {name: round(speed, 2) for name, speed in estimates.relative_speeds(train, frozenset("ab")).items()}
        {'a': 0.81, 'b': 1.0}
        """
        deviations = self.speed_deviations.get(task, {})
        speeds = {
            name: speed * math.exp(deviations.get(name, 0.0))
            for name in sorted(device_classes)
            if (speed := self.speed(task, name)) is not None
        }
        if not speeds:
            speeds = {name: self.default_speeds.get(name, 0.0) for name in sorted(device_classes)}
            if not speeds or not all(speeds.values()):
                return dict.fromkeys(sorted(device_classes), 1.0)
        ratios = [speeds[n] / self.default_speeds[n] for n in speeds if speeds[n] and self.default_speeds.get(n)]
        unit = sum(ratios) / len(ratios) if ratios else 0.0
        fallback = max(speeds.values())
        for name in device_classes - speeds.keys():
            speeds[name] = min(self.default_speeds.get(name, 0.0) * unit, fallback) or fallback
        top = max(speeds.values())
        return {name: speeds[name] / top if top else 1.0 for name in sorted(device_classes)}

    def remaining_s(
        self, task: TaskName, device_class: str, held_s: float, attained_service_s: Mapping[str, float]
    ) -> Interval | None:
        """Seconds that remain of a run on that class; None if its duration is unknown, or long exceeded.

        :param held_s: how long it has held its devices there
        :param attained_service_s: device class → seconds that it ran on others before

        >>> known = Estimates({("dag", "train"): {"nvidia/v100": 2.0}}, {("dag", "train"): Interval(100, 200, 400)})
        >>> [round(part) for part in known.remaining_s(("dag", "train"), "nvidia/v100", 30.0, {"nvidia/v100": 120.0})]
        [6, 42, 145]
        """
        work, speed = self.works.get(task), self.speed(task, device_class)
        if work is None or not speed or min(work) <= 0:
            return None
        done = held_s * speed + math.fsum(s * (self.speed(task, name) or 0.0) for name, s in attained_service_s.items())
        remaining = work.remaining_after(max(done, 0.0))
        return None if remaining is None else Interval(*(min(part / speed, MAX_DURATION_S) for part in remaining))

    def lease_remaining_s(
        self, lease_id: str, task: TaskName, device_class: str, held_s: float, before: Mapping[str, float], at: datetime
    ) -> Interval | None:
        """Seconds from `at` until the task of a live lease ends: by its own report, else by `remaining_s`.

        A report that is over says nothing any more.

        :param before: device class → seconds that it ran on others before

        >>> from datetime import UTC, timedelta
        >>> now = datetime(2026, 1, 1, tzinfo=UTC)
        >>> known = Estimates(reported_ends={"lease-1": now + timedelta(seconds=100)})
        >>> [round(s) for s in known.lease_remaining_s("lease-1", ("dag", "train"), "nvidia/v100", 30.0, {}, now)]
        [87, 100, 115]
        """
        ends_at = self.reported_ends.get(lease_id)
        if ends_at is not None and ends_at > at:
            seconds = min((ends_at - at).total_seconds(), MAX_DURATION_S)
            return Interval(seconds / REPORTED_END_FACTOR, seconds, min(seconds * REPORTED_END_FACTOR, MAX_DURATION_S))
        return self.remaining_s(task, device_class, held_s, before)

    def duration_s(self, task: TaskName, device_class: str) -> Interval | None:
        """Seconds of a whole run on that class, at most `MAX_DURATION_S`; None if unknown."""
        work, speed = self.works.get(task), self.speed(task, device_class)
        if work is None or not speed:
            return None
        return Interval(*(min(max(part / speed, 0.0), MAX_DURATION_S) for part in work))


NO_ESTIMATES = Estimates()


def decayed(amount: float, since: datetime, until: datetime) -> float:
    """An amount of usage after exponential decay with `USAGE_HALF_LIFE_S`."""
    return float(amount * 0.5 ** (max((until - since).total_seconds(), 0.0) / USAGE_HALF_LIFE_S))
