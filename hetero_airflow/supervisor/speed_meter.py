"""Measures how many steps a second a task makes. Pure."""

import math
import statistics
from collections import deque
from datetime import datetime

from hetero_airflow.contract.progress import Progress, ProgressPhase
from hetero_airflow.contract.state_keys import ReportedSpeed
from hetero_airflow.model.run import MAX_STEPS, TimeShares

ENOUGH_S = 60.0
"""A speed is known after steps for this long."""

PART_S = 5.0
"""The steps of so many seconds are measured together. A longer step is a part of its own."""

MAX_PARTS = 240
"""The newest parts decide; with steps below 5 s, 20 minutes."""

MIN_PARTS = 3
"""A task of which each step takes a minute has no speed before three of them are done."""

MAX_PART_S = 600.0
"""A part that took longer counts as this long."""

_MAD_TO_DEVIATION = 1.4826
"""The standard deviation of normal values is this many times their median absolute deviation."""

_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The error of a median of n normal values is this many of their standard deviations / √n."""


class SpeedMeter:
    """The speed of one run: the median of its parts, so that stalls and other devices' noise do not count.

    Nothing counts before the first step after a start or a restore: compilation, warm-up, loading. A part in which a
    checkpoint was published counts only if there are too few others.

    >>> from datetime import timedelta
    >>> from hetero_airflow.testing import EPOCH
    >>> meter = SpeedMeter()
    >>> for second in range(0, 70, 2):
    ...     meter.see(Progress(step=3 * second, at=EPOCH + timedelta(seconds=second), phase=ProgressPhase.STEPPING))
    >>> speed = meter.speed()
    >>> round(speed.steps_per_s, 3), speed.steps, speed.seconds
    (3.0, 198, 66.0)
    """

    def __init__(self) -> None:
        self._parts: deque[tuple[float, bool]] = deque(maxlen=MAX_PARTS)
        """The logarithm of steps a second, and whether a checkpoint was published, of each part."""
        self._begin: tuple[int, datetime, int | None] | None = None
        """Step, time and saved step at the begin of the present part."""
        self._steps, self._seconds = 0, 0.0
        self._shares: TimeShares | None = None

    def see(self, progress: Progress | None) -> None:
        """Take in what the task wrote last; the same may come twice."""
        if progress is None or progress.phase is not ProgressPhase.STEPPING or progress.step is None:
            self._begin = None
            return
        if self._begin is not None:
            step, at, saved_step = self._begin
            steps, seconds = progress.step - step, (progress.at - at).total_seconds()
            if steps < 0 or seconds < 0:  # it began again, or its clock was set back
                self._begin = None
            elif steps == 0 or seconds < PART_S:
                return
            else:
                self._parts.append((math.log(min(steps, MAX_STEPS) / seconds), progress.saved_step != saved_step))
                self._steps = min(self._steps + steps, MAX_STEPS)
                self._seconds += min(seconds, MAX_PART_S)
        self._begin = progress.step, progress.at, progress.saved_step
        self._shares = progress.shares

    def speed(self) -> ReportedSpeed | None:
        """The speed of the run so far; None if it is too early."""
        if self._seconds < ENOUGH_S or len(self._parts) < MIN_PARTS:
            return None
        steady = [log for log, has_saved in self._parts if not has_saved]
        logs = steady if len(steady) >= MIN_PARTS else [log for log, _ in self._parts]
        middle = statistics.median(logs)
        spread = _MAD_TO_DEVIATION * statistics.median(abs(log - middle) for log in logs)
        error = _MEDIAN_ERROR * spread / math.sqrt(len(logs))
        return ReportedSpeed(
            steps_per_s=math.exp(middle),
            deviation=error,
            steps=self._steps,
            seconds=round(self._seconds, 3),
            shares=self._shares,
        )
