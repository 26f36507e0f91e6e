"""The notice: how a task learns that it shall save and stop, and how it says that it has.

A file in the folder that the task shares with its supervisor. To look for it costs one `stat`, so a task can look at
every step, and every process of the task sees it: a rank of torchrun, a shell script, a container.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

NOTICE = "notice"
"""Name of the file within the folder."""

EXIT_STOPPED = 85
"""Exit code of a process that has saved and stopped on request. The number is HTCondor's, whose self-checkpointing
jobs end with 85 by convention: https://htcondor.readthedocs.io/en/latest/users-manual/self-checkpointing-applications.html
"""


DUMP_SIGNAL = signal.SIGUSR1
"""Makes a process of the task that has registered for it write the stacks of its threads into the task's log."""


class Notice(BaseModel):
    """Why a task shall stop, and until when it may save."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: str
    """For people: ``preempted by train/fit``."""
    by: AwareDatetime
    """The task is stopped then, saved or not."""


class Stopped(SystemExit):
    """The task has stopped on request, at a step boundary; its last checkpoint is where it goes on from.

    No `Exception`, so that no ``except Exception`` of a training loop swallows it. Where nobody catches it, the process
    ends with the code 85.

    >>> stopped = Stopped(step=41, cause="preempted")
    >>> stopped.code, stopped.step
    (85, 41)
    """

    def __init__(self, *, step: int | None, cause: str) -> None:
        super().__init__(EXIT_STOPPED)
        self.step = step
        """The step of the last checkpoint that is kept; None if there is none."""
        self.cause = cause

    def __str__(self) -> str:
        kept = "no checkpoint is kept" if self.step is None else f"the checkpoint of step {self.step} is kept"
        return f"stopped on request ({self.cause}); {kept}"


def give_notice(folder: Path, notice: Notice) -> None:
    """Tell the task of this folder to save and stop; a second notice takes the place of the first."""
    replace_file(folder / NOTICE, notice.model_dump_json().encode())


def has_notice(folder: Path | None) -> bool:
    """Whether the task shall stop. Takes about a microsecond."""
    return folder is not None and os.path.exists(folder / NOTICE)  # half the time of Path.exists


def read_notice(folder: Path | None) -> Notice | None:
    """The notice; None if there is none or it says nothing that can be read (which stops the task all the same)."""
    if folder is None:
        return None
    try:
        return Notice.model_validate_json((folder / NOTICE).read_bytes())
    except (OSError, ValidationError):
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}~")
    draft.write_bytes(content)
    draft.replace(path)
