"""The lines of a task's log that say how far its loop is."""

import logging
from collections.abc import Callable

from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.runtime.gang.ranks import rank
from hetero_airflow.runtime.step_times import StepTimes
from hetero_airflow.units import format_bytes, format_duration

INTERVAL_S = 30.0
"""The least time between two lines."""

logger = logging.getLogger(__name__)


class ProgressLog:
    """Writes at most one line each 30 s, and one at the end; of several ranks, only the first one writes.

    The speed and the shares of the time are those of this run, without its first step, which compiles and warms up.

    :param total: how many steps the task has; None if nobody knows
    """

    def __init__(self, total: int | None, times: StepTimes, monotonic: Callable[[], float]) -> None:
        self._total = total
        self._times = times
        self._monotonic = monotonic
        self._due = monotonic() + INTERVAL_S
        self._first: tuple[int, float] | None = None
        self._last = -1

    def done(self, step: int, published: CheckpointEntry | None) -> None:
        """Count a step (from 0); write a line if one is due."""
        self._last = step
        if self._first is None:
            self._first = (step, self._monotonic())
            self._times.restart()
        elif self._monotonic() >= self._due and step + 1 != self._total:
            self._due = self._monotonic() + INTERVAL_S
            place = f"Step {step:,}" + (f" of {self._total:,}" if self._total else "")
            self._write(place, published, self._time_left())

    def end(self, published: CheckpointEntry | None) -> None:
        """Write the last line."""
        if self._total is not None:
            self._write(f"All {self._total:,} steps are done", published)
        elif self._first is not None:
            self._write(f"Step {self._last:,} was the last", published)

    def _write(self, place: str, published: CheckpointEntry | None, *more: str) -> None:
        if rank() != 0:
            return
        saved = (
            f"last checkpoint at step {published.step:,}, {format_bytes(published.size_bytes)}"
            if published
            else "no checkpoint yet"
        )
        shares = self._times.shares()
        parts = (place, speed_text(self._speed()), "" if shares is None else str(shares), *more, saved)
        logger.info(", ".join(part for part in parts if part))

    def _speed(self) -> float:
        """Steps per second; 0 if it is not known."""
        if self._first is None:
            return 0.0
        step, at = self._first
        return (self._last - step) / max(self._monotonic() - at, 1e-9)

    def _time_left(self) -> str:
        speed = self._speed()
        if not self._total or not speed:
            return ""
        return f"about {format_duration((self._total - 1 - self._last) / speed)} left"


def speed_text(steps_per_s: float) -> str:
    """The speed of a loop for people; empty if it is not known.

    >>> speed_text(1234.5), speed_text(2.13), speed_text(0.01), speed_text(0)
    ('1,234.5 steps/s', '2.1 steps/s', '1 min 40 s per step', '')
    """
    if steps_per_s <= 0:
        return ""
    return f"{steps_per_s:,.1f} steps/s" if steps_per_s >= 0.1 else f"{format_duration(1 / steps_per_s)} per step"
