"""A task's reports of its progress, in the file that it shares with its supervisor.

A loop of `checkpoint.steps` reports its steps by itself; with `progress` a task does so without such a loop.
"""

import logging
import os
import threading
import time
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from hetero_airflow.clock import Clock
from hetero_airflow.contract.notice import replace_file
from hetero_airflow.contract.progress import PROGRESS, Progress, ProgressPhase, read_progress
from hetero_airflow.errors import RequestError
from hetero_airflow.model.run import MAX_STEPS
from hetero_airflow.runtime.gang.ranks import rank
from hetero_airflow.runtime.step_times import StepTimes
from hetero_airflow.settings import CONTROL_VARIABLE

INTERVAL_S = 1.0
"""The least time between two writes of a step. A checkpoint or a new phase is written at once."""

logger = logging.getLogger(__name__)


class ProgressFile:
    """Keeps the file up to date. The cost is one comparison per step, and a write of about 50 us each second.

    The task's thread and the saver's thread can call it at the same time. A failed write is logged once and raises
    nothing; the supervisor then knows less.

    :param can_save: False for a task that only reports its steps; a loop that saves then keeps the file for itself
    :param times: knows what the steps' time was spent on
    """

    def __init__(
        self, folder: Path | None, clock: Clock | None = None, *, can_save: bool = True, times: StepTimes | None = None
    ) -> None:
        self._path = None if folder is None else folder / PROGRESS
        self._can_save = can_save
        self._times = times
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._due = 0.0
        self._step: int | None = None
        self._total: int | None = None
        self._saved: tuple[int, datetime | None] | None = None
        self._profile: str | None = None
        self._phase = ProgressPhase.STARTING

    def done(self, step: int, total: int | None = None) -> None:
        """Record a finished step, and how many there are in all."""
        self._step, self._total = step, total
        if self._phase is ProgressPhase.STARTING:
            self.enter(ProgressPhase.STEPPING)
        elif time.monotonic() >= self._due:
            self._write()

    def saved(self, step: int, at: datetime | None) -> None:
        """Record a published checkpoint; `at` is None if the next run may not find it."""
        self._saved = (step, at)
        self._write()

    def profiled(self, key: str) -> None:
        """Record the key of the trace of some steps."""
        self._profile = key
        self._write()

    def enter(self, phase: ProgressPhase) -> None:
        """Begin another phase."""
        self._phase = phase
        self._write()

    def _write(self) -> None:
        if self._path is None or not (self._can_save or self._is_free(self._path)):
            return
        step, at = self._saved or (None, None)
        progress = Progress(
            step=self._step,
            at=self._clock.now(),
            saved_step=step,
            saved_at=at,
            phase=self._phase,
            total=self._total,
            shares=None if self._times is None or self._step is None else self._times.shares(),
            can_save=self._can_save,
            profile=self._profile,
        )
        with self._lock:
            self._due = time.monotonic() + INTERVAL_S
            try:
                replace_file(self._path, progress.model_dump_json().encode())
            except OSError as error:
                logger.warning("This task can't write its progress, so its supervisor does not see it: %s", error)
                self._path = None

    def _is_free(self, path: Path) -> bool:
        """Whether no loop that saves writes this file; its progress says more. It is asked once in `INTERVAL_S`."""
        self._due = time.monotonic() + INTERVAL_S
        previous = read_progress(path.parent)
        return previous is None or not previous.can_save


def progress(step: int, total: int | None = None) -> None:
    """Report that a step has just ended. The scheduler learns from it how fast the task is on each device model.

    Call it after each step, or as often as you like: a call costs a comparison, and a write of 50 us once a second.
    A loop of `checkpoint.steps` reports by itself, and then this does nothing; so do other ranks than the first, and
    a process without an executor.

    :param step: its number, counted from 0. If a task begins again, it may be a smaller one
    :param total: how many steps there are in all; the time that is left is estimated from it
    :raises RequestError: they are no whole numbers from 0, or the step is not below the total

    >>> from hetero_airflow.runtime import progress
    >>> for step in range(3):
    ...     progress(step, total=3)
    """
    for name, value in (("step", step), ("total", total)):
        if isinstance(value, bool) or not ((value is None and name == "total") or isinstance(value, int)):
            raise RequestError(name, value, found="no whole number", remedy="Give the number as an int, from 0")
        if value is not None and not 0 <= value <= MAX_STEPS:
            raise RequestError(name, value, found="a number out of range", remedy=f"Use 0 to {MAX_STEPS}")
    if total is not None and step >= total:
        raise RequestError("step", step, found=f"a total of {total}", remedy="Count steps from 0 to below the total")
    folder = os.environ.get(CONTROL_VARIABLE)
    if folder and rank() == 0:
        _file(folder).done(step, total)


@lru_cache(maxsize=1)
def _file(folder: str) -> ProgressFile:
    return ProgressFile(Path(folder), can_save=False)
