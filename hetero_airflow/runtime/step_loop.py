"""The loop of a task, which can be interrupted between any two steps."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

from hetero_airflow.contract.progress import ProgressPhase
from hetero_airflow.errors import (
    CheckpointError,
    CheckpointStoreUnavailable,
    FencedOut,
    InvalidCheckpoint,
    RequestError,
)
from hetero_airflow.runtime.checkpoint_session import MAX_STEPS, CheckpointSession
from hetero_airflow.runtime.gang.ranks import rank
from hetero_airflow.runtime.progress_log import ProgressLog
from hetero_airflow.runtime.state.restoring import LostChanges, check_restorable, restore
from hetero_airflow.runtime.step_profile import StepProfile
from hetero_airflow.units import parse_duration_s

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """A number of steps or a duration; exactly one is not None.

    >>> SaveInterval.parse("5m"), SaveInterval.parse(100)
    (SaveInterval(steps=None, seconds=300.0), SaveInterval(steps=100, seconds=None))
    """

    steps: int | None
    seconds: float | None

    @classmethod
    def parse(cls, value: object) -> "SaveInterval":
        """Read a number of steps, a duration such as ``"5m"``, or a timedelta.

        :raises RequestError: another type, or a value that is zero, negative or too large
        """
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 < value < MAX_STEPS:
                raise RequestError("every", value, found="a number out of range", remedy="Use 1 or more, or a duration")
            return cls(value, None)
        if not isinstance(value, (str, timedelta)):
            raise RequestError(
                "every",
                value,
                found=f"a value of the type {type(value).__name__}",
                remedy='Write a duration such as "5m", or a whole number of steps',
            )
        return cls(None, parse_duration_s(value, "every"))

    def is_due(self, step: int, since_s: float) -> bool:
        """Whether to save after this step (counted from 0), `since_s` seconds after the last save.

        >>> SaveInterval.parse(100).is_due(99, since_s=0), SaveInterval.parse("5m").is_due(99, since_s=299)
        (True, False)
        """
        if self.steps is not None:
            return (step + 1) % self.steps == 0
        assert self.seconds is not None
        return since_s >= self.seconds


class _NextAction(IntEnum):
    """What all ranks do after a step."""

    GO_ON = 0
    SAVE = 1
    STOP = 2


class StepLoop:
    """Yields the remaining steps, and saves and stops between them; see `checkpoint.steps`.

    :raises RequestError: an invalid `total`, `every` or `state`
    """

    def __init__(
        self,
        session: CheckpointSession,
        total: int,
        every: object,
        state: Any = None,
        metrics: Mapping[str, float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(total, bool) or not isinstance(total, int) or not 0 <= total <= MAX_STEPS:
            raise RequestError("total", total, found="no number of steps", remedy="Use a whole number from 0")
        self._session = session
        self._total = total
        self._every = SaveInterval.parse(every)
        if state is not None:
            check_restorable(state)
        self._state = state
        self._metrics = metrics
        self._monotonic = monotonic
        self._saved_at = monotonic()
        self._step = -1
        self._profile = StepProfile(session)

    def __iter__(self) -> Iterator[int]:
        try:
            for step in range(self.begin(), self._total):
                self._step = step
                yield step
                self.after(step)
        finally:
            self._session.is_due = None
            self._profile.end()
        self.end()

    def begin(self) -> int:
        """Restore the state; return the first remaining step.

        :raises Stopped: there is a notice already; nothing was done since the last checkpoint
        """
        session = self._session
        first = self._resume()
        if session.collectives.broadcast(session.should_stop()):
            raise session.stopped()
        session.is_due = self._is_due
        self._log = ProgressLog(None if self._total == MAX_STEPS else self._total, session.times, self._monotonic)
        return first

    def after(self, step: int) -> None:
        """End a step: save if it is due, stop if there is a notice."""
        self._step = step
        self._session.progress.done(step, None if self._total == MAX_STEPS else self._total)
        self._log.done(step, self._session.published)
        self._profile.after_step()
        self._after_step()

    def end(self) -> None:
        """Return when all saves are published, after the last step."""
        self._session.is_due = None
        self._profile.end()
        self._session.wait()
        self._session.progress.enter(ProgressPhase.DONE)
        self._log.end(self._session.published)

    def _resume(self) -> int:
        session = self._session
        session.progress.enter(ProgressPhase.STARTING)
        session.begin()
        session.collectives.wait()  # no rank reads before earlier runs are fenced out
        last = session.latest() if self._state is not None or rank() == 0 else None
        if last is not None and self._state is not None:
            restore(self._state, last.state)
        session.forget_latest()
        session.state = self._state
        self._lost_changes = LostChanges(self._state)
        self._saved_at = self._monotonic()
        own_first = 0 if last is None else last.step + 1
        first = session.collectives.broadcast(own_first)
        if not session.collectives.all(self._state is None or own_first == first):
            raise InvalidCheckpoint(
                f"to let all ranks continue after step {first - 1}",
                found="ranks that do not see that checkpoint",
                remedy="Set [hetero] checkpoint_url to a place that all workers of the gang reach",
            )
        if first:
            logger.info("Going on after step %d of %d", first - 1, self._total)
        return first

    def _is_due(self) -> bool:
        return self._session.collectives.broadcast(self._next_action()) != _NextAction.GO_ON

    def _next_action(self) -> _NextAction:
        if self._session.should_stop():
            return _NextAction.STOP
        is_due = self._every.is_due(self._step, self._monotonic() - self._saved_at)
        return _NextAction.SAVE if is_due else _NextAction.GO_ON

    def _after_step(self) -> None:
        session = self._session
        if self._state is None:
            has_saved = session.saved_step == self._step
            if has_saved:
                self._saved_at = self._monotonic()
            if session.collectives.broadcast(has_saved and session.should_stop()):
                self._stop()
            return
        is_last = self._step == self._total - 1
        action = session.collectives.broadcast(self._next_action())
        if action == _NextAction.STOP:
            self._stop(is_last=is_last)
        elif is_last:
            self._save(wait=True, final=True)
        elif action == _NextAction.SAVE:
            with suppress(CheckpointStoreUnavailable):  # it is logged, and the store may answer the next time
                self._save()
            self._saved_at = self._monotonic()

    def _save(self, *, wait: bool = False, final: bool = False) -> None:
        session = self._session
        with session.times.saving(), suppress(CheckpointStoreUnavailable):  # of the previous save, which is logged
            session.wait()
        self._lost_changes.warn()
        for prepare in session.before_save:
            prepare()
        session.save(self._step, self._state, metrics=self._metrics, files=None, wait=wait, final=final)

    def _stop(self, *, is_last: bool = False) -> None:
        """Save and stop. After the last step it only saves, since nothing is left to stop."""
        session = self._session
        session.progress.enter(ProgressPhase.STOPPING)
        try:
            if self._state is None:
                session.wait()
            else:
                self._save(wait=True, final=is_last)
        except FencedOut:
            raise
        except CheckpointError:
            logger.exception("Step %d is lost: the task must stop and can't save it", self._step)
        else:
            if is_last:
                return
        session.collectives.wait()  # if a rank ends early, torchrun kills the others while they save
        raise session.stopped()
