"""How far the task is, for its supervisor: a file in the folder that they share."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from hetero_airflow.clock import Clock, SystemClock
from hetero_airflow.runtime.notice import replace_file

PROGRESS = "progress"
"""Name of the file within the folder."""

INTERVAL_S = 1.0
"""A step is written at most this often; a checkpoint or a new phase at once."""

logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """What the task does."""

    STARTING = "starting"
    """It has looked for its checkpoint, and no step is done yet: compilation, warm-up, the first step."""
    STEPPING = "stepping"
    """It goes from step to step."""
    STOPPING = "stopping"
    """It has seen a notice and saves."""
    DONE = "done"
    """All steps are done and saved."""


class Progress(BaseModel):
    """How far a task is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int | None = None
    """The last step that is done, counted from 0; None before the first."""
    at: AwareDatetime
    """When this was written."""
    saved_step: int | None = None
    """That of the newest checkpoint that is published; None without one."""
    saved_at: AwareDatetime | None = None
    """When that was published; None also where the next run may not find it: see `CheckpointPlace.is_host_bound`."""
    phase: Phase = Phase.STARTING


class ProgressFile:
    """Keeps the file up to date; costs a comparison a step, and a write of about 50 us each second.

    May be called from the task's thread and from the saver's at once. That it can't be written is logged once and
    stops nobody: the supervisor then knows less.
    """

    def __init__(self, folder: Path | None, clock: Clock | None = None) -> None:
        self._path = None if folder is None else folder / PROGRESS
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._due = 0.0
        self._step: int | None = None
        self._saved: tuple[int, datetime | None] | None = None
        self._phase = Phase.STARTING

    def done(self, step: int) -> None:
        """A step is done."""
        self._step = step
        if self._phase is Phase.STARTING:
            self.enter(Phase.STEPPING)
        elif time.monotonic() >= self._due:
            self._write()

    def saved(self, step: int, at: datetime | None) -> None:
        """A checkpoint is published; `at` is None if the next run may not find it."""
        self._saved = (step, at)
        self._write()

    def enter(self, phase: Phase) -> None:
        """Another phase begins."""
        self._phase = phase
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        step, at = self._saved or (None, None)
        progress = Progress(step=self._step, at=self._clock.now(), saved_step=step, saved_at=at, phase=self._phase)
        with self._lock:
            self._due = time.monotonic() + INTERVAL_S
            try:
                replace_file(self._path, progress.model_dump_json().encode())
            except OSError as error:
                logger.warning("The progress of this task can't be written and its supervisor won't see it: %s", error)
                self._path = None


def read_progress(folder: Path) -> Progress | None:
    """How far the task of this folder is; None if it has not said so yet."""
    try:
        return Progress.model_validate_json((folder / PROGRESS).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("The progress in %s can't be read: %s", folder, error)
        return None
