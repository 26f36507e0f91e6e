"""The notice that asks a task to save and stop, and the task's answer.

The notice is a file in the folder that the task shares with its supervisor. A check costs one `stat`, so a task can
check at every step. Every process of the task sees the file: a rank of torchrun, a shell script, a container.
"""

import os
import signal
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

NOTICE = "notice"
"""Name of the file in the folder."""

EXIT_STOPPED = 85
"""Exit code of a process that saved and stopped on request. HTCondor's self-checkpointing jobs use the same code:
https://htcondor.readthedocs.io/en/latest/users-manual/self-checkpointing-applications.html
"""

DUMP_SIGNAL = signal.SIGUSR1
"""Asks a process of the task to write the stacks of its threads to the task's log, if the process listens for it."""


class Notice(BaseModel):
    """Why a task must stop, and until when it can save."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: str
    """A text for people, such as ``preempted by train/fit``."""
    by: AwareDatetime
    """At this time the task is stopped, saved or not."""


class Stopped(SystemExit):
    """The task stops on request between two steps; the next run continues from its last checkpoint.

    It is not an `Exception`, so ``except Exception`` in a training loop does not catch it. If nothing catches it, the
    process ends with the code 85.

    >>> stopped = Stopped(step=41, cause="preempted")
    >>> stopped.code, stopped.step
    (85, 41)
    """

    def __init__(self, *, step: int | None, cause: str) -> None:
        super().__init__(EXIT_STOPPED)
        self.step = step
        """The step of the last published checkpoint; None without one."""
        self.cause = cause

    def __str__(self) -> str:
        kept_text = "no checkpoint is kept" if self.step is None else f"the checkpoint of step {self.step} is kept"
        return f"stopped on request ({self.cause}); {kept_text}"


def give_notice(folder: Path, notice: Notice) -> None:
    """Ask the task of this folder to save and stop; a second notice replaces the first."""
    replace_file(folder / NOTICE, notice.model_dump_json().encode())


def has_notice(folder: Path | None) -> bool:
    """Whether the task must stop. Takes about a microsecond."""
    return folder is not None and os.path.exists(folder / NOTICE)  # takes half the time of Path.exists


def read_notice(folder: Path | None) -> Notice | None:
    """The notice; None if there is none, or if it can't be read, in which case the task stops too."""
    if folder is None:
        return None
    try:
        return Notice.model_validate_json((folder / NOTICE).read_bytes())
    except (OSError, ValidationError):
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file; a reader sees the whole old content or the whole new content."""
    draft = path.with_name(f"{path.name}.{os.getpid()}~")
    draft.write_bytes(content)
    draft.replace(path)
