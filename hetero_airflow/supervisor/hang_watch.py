"""For how long a task has done nothing: no step, no computation on its cores, nothing on its devices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from hetero_airflow.runtime.progress_file import Progress

IDLE_CORES = 0.01
"""A task that uses less than this part of one core does nothing; supervising threads alone come to a tenth of it."""

IDLE_DEVICE = 0.01

CHECKS_PER_WINDOW = 20
"""How often it is looked in a window: a look at all processes of the task costs milliseconds."""


class HangWatch:
    """Watches one task.

    :param window_s: so long it may do nothing before somebody is told
    :param cpu_s: seconds that its processes have computed so far
    :param utilization: the part of the last moments in which a kernel ran on its devices; None where nobody can tell

    >>> from hetero_airflow.testing import EPOCH
    >>> from datetime import timedelta
    >>> watch = HangWatch(60, cpu_s=lambda: 7.0, utilization=lambda: None)
    >>> [watch.beat(None, EPOCH + timedelta(seconds=seconds))[1] for seconds in (0, 57, 60, 63, 120)]
    [0, 0, 1, 0, 2]
    """

    def __init__(self, window_s: float, cpu_s: Callable[[], float], utilization: Callable[[], float | None]) -> None:
        self._window_s = window_s
        self._cpu_s = cpu_s
        self._utilization = utilization
        self._seen: tuple[object, float, datetime] | None = None
        self._since: datetime | None = None
        self._looked_at: datetime | None = None
        self._windows = 0

    def beat(self, progress: Progress | None, now: datetime) -> tuple[float, int]:
        """(seconds of nothing, the number of a window that has just become full or 0)."""
        if self._looked_at is not None and now < self._looked_at:  # the clock was set back: watched from here on
            self._since = None
        elif (
            self._looked_at is not None and (now - self._looked_at).total_seconds() < self._window_s / CHECKS_PER_WINDOW
        ):
            return 0.0, 0
        self._looked_at = now
        where = None if progress is None else (progress.step, progress.phase, progress.saved_step)
        if self._seen is None or self._since is None or self._does_something(where, now):
            self._seen, self._since, self._windows = (where, self._cpu_s(), now), now, 0
            return 0.0, 0
        idle_s = (now - self._since).total_seconds()
        windows = int(idle_s // self._window_s)
        if windows == self._windows:
            return idle_s, 0
        self._windows = windows
        return idle_s, windows

    def _does_something(self, where: object, now: datetime) -> bool:
        assert self._seen is not None
        before, cpu_s, at = self._seen
        seconds = (now - at).total_seconds()
        if where != before or self._cpu_s() - cpu_s > max(0.5, IDLE_CORES * seconds):
            return True
        return (self._utilization() or 0.0) > IDLE_DEVICE
