"""Monitors the task of one lease in the supervisor: passes notices to the task and its progress to the store.

It runs once in each heartbeat of the supervisor. A failure here is logged, and tried again at the next heartbeat: it
must not cost the task its heartbeat.
"""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hetero_airflow.contract.notice import DUMP_SIGNAL, Notice, give_notice, read_notice
from hetero_airflow.contract.progress import Progress, read_progress
from hetero_airflow.contract.state_keys import PREEMPT, PROGRESS, LeaseNotice, LeaseProgress
from hetero_airflow.supervisor.execution_api_calls import ExecutionApiStates
from hetero_airflow.supervisor.hang_watch import HangWatch
from hetero_airflow.supervisor.speed_meter import SpeedMeter

_REPORT_EVERY_S = 5.0

_PREEMPTED = "Preempted: the task gets a notice to save and end. It goes on later, same try"

_KILL_AFTER = timedelta(seconds=5)
"""The time between SIGTERM and SIGKILL."""


@dataclass
class TaskMonitor:
    """Monitors the task of one lease.

    :param folder: the control folder
    :param hangs: measures how long the task has been idle
    :param send: sends a signal to the task's process
    :param grace: the time to save for a task that hangs
    """

    lease_id: str
    folder: Path
    states: ExecutionApiStates
    hangs: HangWatch
    send: Callable[[signal.Signals], None]
    grace: timedelta
    log: Any
    hung_s: float | None = None
    """The idle time for which the task got a notice; None if it does not hang."""
    _notice: Notice | None = None
    _signals: list[signal.Signals] = field(default_factory=list)
    _reported: tuple[Progress, datetime] | None = None
    _meter: SpeedMeter = field(default_factory=SpeedMeter)
    _last_error: str = ""
    _is_ending: bool = False
    """Whether its worker is about to stop it."""

    @property
    def notice(self) -> str | None:
        """The cause of a notice for any other reason than a hang."""
        return self._notice.cause if self._notice is not None and self.hung_s is None else None

    def request_stop(self) -> bool:
        """The worker is about to stop the task. Returns whether the task can save: it will get a notice.

        Signal handlers call this, so it only sets a flag. The next `check` gives the notice, if Airflow still wants
        the task: a run that is over has nothing to save, and must not report for the present one.
        """
        progress = read_progress(self.folder)
        self._is_ending = progress is not None and progress.can_save
        return self._is_ending

    def check(self, now: datetime, *, is_online: bool = True) -> None:
        """One round.

        :param is_online: whether the API server answers. If False, it gets no calls: each would block as long as the
            heartbeat did, and Airflow would take the task for dead
        """
        try:
            progress = read_progress(self.folder)
            self._meter.see(progress)
            self._take_given_notice()
            if is_online:
                self._pass_notice()
                self._pass_worker_shutdown(now)
                self._report_progress(progress, now)
            self._look_for_hang(progress, now)
        except Exception as error:  # noqa: BLE001  whatever fails, the task's heartbeat goes on
            text = f"{type(error).__name__}: {error}"
            if text != self._last_error:
                self.log.warning("The notices of this task can't be read now; it is tried again", error=text)
            self._last_error = text
        else:
            self._last_error = ""
        if self._notice is not None and now >= self._notice.by:
            self._stop(signal.SIGTERM, "The task did not save and end in time. It is stopped")
            if now >= self._notice.by + _KILL_AFTER:
                self._stop(signal.SIGKILL, "The task did not end when it was stopped. It is killed")

    def _stop(self, number: signal.Signals, text: str) -> None:
        if number not in self._signals and self._notice is not None:
            self._signals.append(number)
            self.log.warning(text, cause=self._notice.cause)
            self.send(number)

    def _take_given_notice(self) -> None:
        given = read_notice(self.folder) if self._notice is None else None
        if given is not None:
            self._note(given, _PREEMPTED)

    def see_end(self, now: datetime, *, is_online: bool = True) -> None:
        """The task has ended, perhaps because of a notice that a scheduler of this host has just given.

        A profile that a short task has kept since the last round is still reported.
        """
        self._notice = self._notice or read_notice(self.folder)
        progress = read_progress(self.folder)
        if is_online and progress is not None and progress.profile not in (None, self._reported_profile):
            try:
                self._report(progress, now)
            except Exception as error:  # noqa: BLE001  whatever fails, the end is reported
                self.log.warning("The profile of this task is not reported", error=f"{type(error).__name__}: {error}")

    @property
    def _reported_profile(self) -> str | None:
        return self._reported[0].profile if self._reported is not None else None

    def _pass_notice(self) -> None:
        if self._notice is not None:
            return
        value = self.states.get(PREEMPT)
        if value is None:
            return
        try:
            received = LeaseNotice.model_validate(value)
        except ValidationError:
            return
        if received.lease_id == self.lease_id:
            self._give(received.notice, _PREEMPTED)

    def _pass_worker_shutdown(self, now: datetime) -> None:
        if self._is_ending and self._notice is None:
            notice = Notice(cause="its worker shuts down", by=now + self.grace)
            self._give(notice, "Its worker shuts down: the task gets a notice to save and end. It goes on elsewhere")

    def _give(self, notice: Notice, text: str) -> None:
        give_notice(self.folder, notice)
        self._note(notice, text)

    def _note(self, notice: Notice, text: str) -> None:
        self._notice = notice
        self.log.warning(text, cause=notice.cause, by=notice.by.isoformat(timespec="seconds"))

    def _report_progress(self, progress: Progress | None, now: datetime) -> None:
        if progress is None or (self._reported is not None and progress == self._reported[0]):
            return
        is_saved = self._reported is None or progress.saved_step != self._reported[0].saved_step
        if self._reported is not None and not is_saved and (now - self._reported[1]).total_seconds() < _REPORT_EVERY_S:
            return
        self._report(progress, now)

    def _report(self, progress: Progress, now: datetime) -> None:
        speed = self._meter.speed()
        report = LeaseProgress(lease_id=self.lease_id, progress=progress, reported_at=now, speed=speed)
        self.states.set(PROGRESS, json.loads(report.model_dump_json()))
        self._reported = (progress, now)

    def _look_for_hang(self, progress: Progress | None, now: datetime) -> None:
        """Warn and dump the stacks after one idle window; after a second one, let the task save and restart."""
        idle_s, windows = self.hangs.check(progress, now)
        if windows == 1:
            self.log.warning(
                "The task is idle: no step, no use of its devices or cores. Its stacks follow", seconds=idle_s
            )
            self.send(DUMP_SIGNAL)
        elif windows == 2 and self._notice is None and progress is not None and progress.can_save:
            self.hung_s = idle_s
            self._give(
                Notice(cause=f"no progress for {idle_s:.0f} s", by=now + self.grace),
                "The task hangs: it gets a notice to save and end",
            )
