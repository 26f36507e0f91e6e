"""Estimates learned from the history of runs, a little with each look. Pure but for the history that it is given."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import TypeVar

from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import MAX_DURATION_S, NO_ESTIMATES, Estimates, TaskName
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.run import Run, RunEnd
from hetero_airflow.model.worker import Worker
from hetero_airflow.scheduling.learning.past_use import PastUse
from hetero_airflow.scheduling.learning.speed_fit import (
    MIN_RUN_S,
    ClassSeconds,
    FittedSpeeds,
    TaskSummary,
    fit_speeds,
    summarize,
)
from hetero_airflow.store.store import History

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)

RUNS_PER_TASK = 32
"""The newest that are remembered; older ones would weigh less than a sixteenth."""

MAX_TASKS = 5_000
"""Those that ran last are remembered."""

MAX_RECENT = 2_000
"""Runs of any task that `Estimates.finished_s` is made of, and requests that `Estimates.mix` is made of."""


class Learner:
    """Remembers what runs took, and says what to expect of the next.

    The same runs in the same order make the same estimates, in however many portions they come. Only
    finished runs teach durations; the parts of a run that paused are joined with its last one.

    >>> from hetero_airflow.testing import a_run
    >>> learner = Learner()
    >>> learner.learn([a_run(held_s=100.0, device_class="nvidia/v100")] * 20)
    []
    >>> estimates = learner.estimates(frozenset({"nvidia/t4"}))
    >>> round(estimates.duration_s(("dag", "task"), "nvidia/v100").middle)
    100
    >>> round(estimates.duration_s(("dag", "task"), "nvidia/t4").middle)
    256
    """

    def __init__(self) -> None:
        self._runs: dict[TaskName, deque[ClassSeconds]] = {}
        self._summaries: dict[TaskName, TaskSummary] = {}
        self._recent: deque[tuple[TaskName, ClassSeconds]] = deque(maxlen=MAX_RECENT)
        self._asked: dict[str, Alternative] = {}
        self._paused: dict[str, ClassSeconds] = {}
        self._past = PastUse()
        self._seen = 0
        self._known = NO_ESTIMATES
        self._classes: frozenset[str] = frozenset()

    def refresh(self, history: History, device_classes: frozenset[str]) -> Estimates:
        """What is known now; the same object as before where no run ended and the classes are the same.

        Reads what ended since the last call. What can't be learned from is logged.

        :raises StoreUnavailable: the database is down
        """
        runs = history.runs(self._seen)
        if not runs and device_classes == self._classes:
            return self._known
        for word in self.learn(runs):
            log.warning("%s", word)
        self._seen = runs[-1].sequence if runs else self._seen
        self._classes = device_classes
        self._known = self.estimates(device_classes)
        return self._known

    def learn(self, runs: Iterable[Run]) -> list[str]:
        """Take in runs, oldest first; a word on each that is passed over because what it says can't be."""
        words = []
        for run in runs:
            _put_last(self._asked, run.request_id, run.asked)
            paused = self._paused.pop(run.request_id, {})
            served = dict(run.attained_service_s or paused)
            wrong = next((s for s in (run.held_s, *served.values()) if not (math.isfinite(s) and s >= 0)), None)
            if wrong is not None:
                words.append(
                    f"The run {run.request_id} of {'.'.join(run.task)} on {run.device_class} teaches nothing: it is "
                    f"said to have held its devices for {wrong:g} s. Set the clocks of the schedulers' hosts by NTP."
                )
                continue
            served[run.device_class] = served.get(run.device_class, 0.0) + run.held_s
            if run.end is not RunEnd.PAUSED:
                used = {name: run.devices * seconds for name, seconds in served.items()}
                self._past.add(run.task[0], used, run.ended_at)
            if run.end not in (RunEnd.FINISHED, RunEnd.PAUSED):
                continue
            served = {name: min(max(seconds, MIN_RUN_S), MAX_DURATION_S) for name, seconds in served.items()}
            if run.end is RunEnd.PAUSED:
                _put_last(self._paused, run.request_id, served)
                continue
            own = self._runs.get(run.task) or deque(maxlen=RUNS_PER_TASK)
            own.append(served)
            _put_last(self._runs, run.task, own, MAX_TASKS)
            self._summaries.pop(run.task, None)
            self._recent.append((run.task, served))
        return words

    def estimates(self, device_classes: frozenset[str]) -> Estimates:
        """What the runs say, also of those device classes that a task never ran on."""
        self._summaries = {
            task: self._summaries.get(task) or summarize(tuple(runs)) for task, runs in self._runs.items()
        }
        fitted = fit_speeds(self._summaries, device_classes)
        asked = Counter(self._asked.values())
        mix = sorted(asked.items(), key=lambda pair: (-pair[1], pair[0].key))
        return Estimates(
            fitted.speeds,
            fitted.works,
            self._finished_s(fitted),
            tuple((alternative, number / len(self._asked)) for alternative, number in mix),
            fitted.default_speeds,
            used_device_s=self._past.device_s(),
            used_at=self._past.at,
        )

    def _finished_s(self, fitted: FittedSpeeds) -> tuple[float, ...]:
        found = []
        for task, served in self._recent:
            speeds = fitted.speeds.get(task, {})
            if served.keys() <= speeds.keys():
                work = math.fsum(seconds * speeds[name] for name, seconds in served.items())
                found.append(min(max(work / max(speeds.values()), MIN_RUN_S), MAX_DURATION_S))
        return tuple(sorted(found))


def device_classes(workers: Iterable[Worker]) -> frozenset[str]:
    """The classes of the devices that the workers have."""
    return frozenset(device_class(device) for worker in workers for device in worker.devices)


def _put_last(known: dict[K, V], key: K, value: V, limit: int = MAX_RECENT) -> None:
    """Put it at the end, and drop what has been there for longest where there are too many."""
    known.pop(key, None)
    known[key] = value
    while len(known) > limit:
        del known[next(iter(known))]
