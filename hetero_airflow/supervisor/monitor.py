"""What the supervisor does for its task beside Airflow's own: carries the notice in, and progress out.

Asked once a heartbeat, in the supervisor's process. Whatever fails here is logged and tried again at the next one: it
must not cost the task its heartbeat.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from hetero_airflow.contract.state_keys import PREEMPT, PROGRESS, LeaseNotice, LeaseProgress
from hetero_airflow.runtime.notice import DUMP_SIGNAL, Notice, give_notice
from hetero_airflow.runtime.progress_file import Progress, read_progress
from hetero_airflow.supervisor.hang_watch import HangWatch

_REPORT_EVERY_S = 5.0

_KILL_AFTER = timedelta(seconds=5)
"""What a task gets between SIGTERM and SIGKILL."""


class TaskStateStore(Protocol):
    """The task state store, as one task's supervisor reaches it."""

    def get(self, key: str) -> Any:
        """The JSON value of a key, None where there is none."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Write the JSON value of a key."""
        ...


class TaskMonitor:
    """Looks after the task of one lease.

    :param folder: the control folder
    :param hangs: says for how long the task has done nothing
    :param send: sends the task's process a signal
    :param grace: what a task that hangs gets to save
    """

    def __init__(
        self,
        lease_id: str,
        folder: Path,
        states: TaskStateStore,
        hangs: HangWatch,
        send: Callable[[signal.Signals], None],
        grace: timedelta,
        log: Any,
    ) -> None:
        self._lease_id = lease_id
        self._folder = folder
        self._states = states
        self._hangs = hangs
        self._send = send
        self._grace = grace
        self._log = log
        self._notice: Notice | None = None
        self._signals: list[signal.Signals] = []
        self._told: tuple[Progress, datetime] | None = None
        self._trouble = ""
        self._is_ending = False
        """Whether its worker is about to end it."""
        self.hung_s: float | None = None
        """For how long the task had done nothing when it was told to stop for that."""

    @property
    def notice(self) -> str | None:
        """Why the task was told to stop, if it was told by somebody else."""
        return self._notice.cause if self._notice is not None and self.hung_s is None else None

    def request_stop(self) -> bool:
        """Its worker is about to end it: a task that steps will be told to save; whether it will.

        For a handler of signals, so that it does no more than note it. The next `beat` that finds the task still
        wanted tells it: what belongs to a run that is over has nothing to save, and must not speak for the present one.
        """
        self._is_ending = read_progress(self._folder) is not None
        return self._is_ending

    def beat(self, now: datetime, *, is_online: bool = True) -> None:
        """One round.

        :param is_online: whether the API server answers: else nothing is asked of it, since each call would block for
            as long as the heartbeat did, and Airflow would take the task for dead
        """
        try:
            progress = read_progress(self._folder)
            if is_online:
                self._bring_notice()
                self._bring_end(now)
                self._tell_progress(progress, now)
            self._look_for_hang(progress, now)
        except Exception as error:  # noqa: BLE001  whatever the API or the disk answers, the task's heartbeat goes on
            text = f"{type(error).__name__}: {error}"
            if text != self._trouble:
                self._log.warning("The notices of this task can't be read just now; tried again", error=text)
            self._trouble = text
        else:
            self._trouble = ""
        if self._notice is not None and now >= self._notice.by:
            self._stop(signal.SIGTERM, "The task did not save and end in time: it is stopped")
            if now >= self._notice.by + _KILL_AFTER:
                self._stop(signal.SIGKILL, "The task did not end when it was stopped: it is killed")

    def _stop(self, number: signal.Signals, text: str) -> None:
        if number not in self._signals and self._notice is not None:
            self._signals.append(number)
            self._log.warning(text, cause=self._notice.cause)
            self._send(number)

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
        if told.lease_id == self._lease_id:
            self._give(told.notice, "Preempted: the task is told to save and end; it goes on later, with the same try")

    def _bring_end(self, now: datetime) -> None:
        if self._is_ending and self._notice is None:
            told = Notice(cause="its worker shuts down", by=now + self._grace)
            self._give(told, "Its worker shuts down: the task is told to save and end; it goes on elsewhere")

    def _give(self, notice: Notice, text: str) -> None:
        give_notice(self._folder, notice)
        self._notice = notice
        self._log.warning(text, cause=notice.cause, by=notice.by.isoformat(timespec="seconds"))

    def _tell_progress(self, progress: Progress | None, now: datetime) -> None:
        if progress is None or (self._told is not None and progress == self._told[0]):
            return
        is_saved = self._told is None or progress.saved_step != self._told[0].saved_step
        if self._told is not None and not is_saved and (now - self._told[1]).total_seconds() < _REPORT_EVERY_S:
            return
        told = LeaseProgress(lease_id=self._lease_id, progress=progress, reported_at=now)
        self._states.set(PROGRESS, json.loads(told.model_dump_json()))
        self._told = (progress, now)

    def _look_for_hang(self, progress: Progress | None, now: datetime) -> None:
        """Warn and show the stacks after a window of nothing; after a second one, let the task save and come again."""
        idle_s, windows = self._hangs.beat(progress, now)
        if windows == 1:
            self._log.warning(
                "The task does nothing: no step, no use of its devices or cores. Its stacks follow", seconds=idle_s
            )
            self._send(DUMP_SIGNAL)
        elif windows == 2 and self._notice is None and progress is not None:
            self.hung_s = idle_s
            self._give(
                Notice(cause=f"no progress for {idle_s:.0f} s", by=now + self._grace),
                "The task hangs: it is told to save and end",
            )
