"""Measures how long a task has been idle: no step, no computation on its cores or devices."""

from collections.abc import Callable
from datetime import datetime

from hetero_airflow.contract.progress import Progress

IDLE_CORES = 0.01
"""A task that uses less than this part of one core is idle. Supervising threads alone use a tenth of it."""

IDLE_DEVICE = 0.01

CHECKS_PER_WINDOW = 20
"""A check of all processes of the task costs milliseconds, so a window has only this many."""


class HangWatch:
    """Watches one task.

    :param window_s: an idle time of this length counts
    :param cpu_s: CPU seconds of its processes so far
    :param utilization: the part of the last moments in which a kernel ran on its devices; None if unknown

    >>> from hetero_airflow.testing import EPOCH
    >>> from datetime import timedelta
    >>> watch = HangWatch(60, cpu_s=lambda: 7.0, utilization=lambda: None)
    >>> [watch.check(None, EPOCH + timedelta(seconds=seconds))[1] for seconds in (0, 57, 60, 63, 120)]
    [0, 0, 1, 0, 2]
    """

    def __init__(self, window_s: float, cpu_s: Callable[[], float], utilization: Callable[[], float | None]) -> None:
        self._window_s, self._period_s = window_s, window_s / CHECKS_PER_WINDOW
        self._cpu_s = cpu_s
        self._utilization = utilization
        self._seen: tuple[object, float, datetime] | None = None
        self._since: datetime | None = None
        self._checked_at: datetime | None = None
        self._windows = 0

    def check(self, progress: Progress | None, now: datetime) -> tuple[float, int]:
        """The idle seconds, and the number of the idle window that has just become full; 0 for none."""
        if self._checked_at is not None and now < self._checked_at:  # the clock was set back: start again
            self._since = None
        elif self._checked_at is not None and (now - self._checked_at).total_seconds() < self._period_s:
            return 0.0, 0
        self._checked_at = now
        position = None if progress is None else (progress.step, progress.phase, progress.saved_step)
        if self._seen is None or self._since is None or self._is_active(position, now):
            self._seen, self._since, self._windows = (position, self._cpu_s(), now), now, 0
            return 0.0, 0
        idle_s = (now - self._since).total_seconds()
        windows = int(idle_s // self._window_s)
        if windows == self._windows:
            return idle_s, 0
        self._windows = windows
        return idle_s, windows

    def _is_active(self, position: object, now: datetime) -> bool:
        assert self._seen is not None
        before, cpu_s, at = self._seen
        seconds = (now - at).total_seconds()
        if position != before or self._cpu_s() - cpu_s > max(0.5, IDLE_CORES * seconds):
            return True
        return (self._utilization() or 0.0) > IDLE_DEVICE
