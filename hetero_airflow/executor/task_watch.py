"""What the supervisor does for its task beside Airflow's own: carries the notice in, and progress out.

Asked once a heartbeat, in the supervisor's process. Whatever fails here is logged and tried again at the next one: it
must not cost the task its heartbeat.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from hetero_airflow.executor.state_keys import PREEMPT, PROGRESS, LeaseNotice, LeaseProgress
from hetero_airflow.runtime.notice import Notice, give_notice
from hetero_airflow.runtime.progress_file import Progress, read_progress

_TELL_EVERY_S = 5.0


class TaskStates(Protocol):
    """The task state store, as one task's supervisor reaches it."""

    def get(self, key: str) -> Any:
        """The JSON value of a key, None where there is none."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Write the JSON value of a key."""
        ...


class TaskWatch:
    """Looks after the task of one lease.

    :param folder: the control folder
    :param stop: sends the task's process SIGTERM
    """

    def __init__(self, lease_id: str, folder: Path, states: TaskStates, stop: Callable[[], None], log: Any) -> None:
        self._lease_id = lease_id
        self._folder = folder
        self._states = states
        self._stop = stop
        self._log = log
        self._notice: Notice | None = None
        self._is_stopped = False
        self._told: tuple[Progress, datetime] | None = None
        self._trouble = ""

    @property
    def is_told(self) -> bool:
        """Whether the task was told to stop."""
        return self._notice is not None

    def beat(self, now: datetime) -> None:
        """One round."""
        try:
            self._bring_notice()
            self._tell_progress(now)
        except Exception as error:  # noqa: BLE001  whatever the API or the disk answers, the task's heartbeat goes on
            text = f"{type(error).__name__}: {error}"
            if text != self._trouble:
                self._log.warning("The notices of this task can't be read just now; tried again", error=text)
            self._trouble = text
        else:
            self._trouble = ""
        if self._notice is not None and now >= self._notice.by and not self._is_stopped:
            self._is_stopped = True
            self._log.warning("The task did not save and end in time: it is stopped", cause=self._notice.cause)
            self._stop()

    def _bring_notice(self) -> None:
        if self._notice is not None:
            return
        value = self._states.get(PREEMPT)
        if value is None:
            return
        try:
            told = LeaseNotice.model_validate(value)
        except ValidationError:
            return
        if told.lease_id != self._lease_id:
            return
        give_notice(self._folder, told.notice)
        self._notice = told.notice
        self._log.warning(
            "Preempted: the task is told to save and end; it goes on later, with the same try",
            cause=told.notice.cause,
            by=told.notice.by.isoformat(timespec="seconds"),
        )

    def _tell_progress(self, now: datetime) -> None:
        progress = read_progress(self._folder)
        if progress is None or (self._told is not None and progress == self._told[0]):
            return
        is_saved = self._told is None or progress.saved_step != self._told[0].saved_step
        if self._told is not None and not is_saved and (now - self._told[1]).total_seconds() < _TELL_EVERY_S:
            return
        told = LeaseProgress(lease_id=self._lease_id, progress=progress, told_at=now)
        self._states.set(PROGRESS, json.loads(told.model_dump_json()))
        self._told = (progress, now)
