"""The task's progress, which it writes to a file in the folder that it shares with its supervisor: the format."""

import logging
from enum import StrEnum
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from hetero_airflow.model.run import TimeShares

PROGRESS = "progress"
"""Name of the file in the folder."""

logger = logging.getLogger(__name__)


class ProgressPhase(StrEnum):
    """What the task does now."""

    STARTING = "starting"
    """It has loaded its checkpoint, and no step is done yet: compilation, warm-up, the first step."""
    STEPPING = "stepping"
    """It runs its steps."""
    STOPPING = "stopping"
    """It saves because of a notice."""
    DONE = "done"
    """All steps are done and saved."""


class Progress(BaseModel):
    """The progress of a task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int | None = None
    """The last finished step, counted from 0; None before the first."""
    at: AwareDatetime
    """When this was written."""
    saved_step: int | None = None
    """The step of the newest published checkpoint; None without one."""
    saved_at: AwareDatetime | None = None
    """When it was published; None also if the next run may not find it, see `CheckpointPlace.is_host_bound`."""
    phase: ProgressPhase = ProgressPhase.STARTING
    total: int | None = None
    """How many steps there are in all; None if the task does not say."""
    shares: TimeShares | None = None
    """What the steps' time was spent on; None before the first step, and if no loader says what the task waits for."""
    can_save: bool = True
    """Whether the task can save and end at a notice; False if it only reports its steps."""

    profile: str | None = None
    """The key of the trace that ``profile=True`` asked for, in the store of checkpoints; None without one."""

    @property
    def has_stopped(self) -> bool:
        """Whether all steps are saved, and no other follows."""
        is_last = self.phase in (ProgressPhase.STOPPING, ProgressPhase.DONE)
        return is_last and self.step is not None and self.saved_step == self.step


def read_progress(folder: Path) -> Progress | None:
    """The progress of the task of this folder; None if it wrote none yet."""
    try:
        return Progress.model_validate_json((folder / PROGRESS).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("The progress in %s can't be read: %s", folder, error)
        return None
