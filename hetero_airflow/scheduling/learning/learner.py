"""Learns estimates from the history of runs, incrementally. Pure, except that it reads the given history."""

import logging
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import MAX_DURATION_S, NO_ESTIMATES, Estimates, TaskName, decayed
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.run import EndedRun, MeasuredSpeed, RunEnd
from hetero_airflow.model.worker import Worker
from hetero_airflow.scheduling.learning.progress_fit import with_measured_speeds
from hetero_airflow.scheduling.learning.speed_fit import (
    MIN_RUN_S,
    ClassSeconds,
    FittedSpeeds,
    TaskSummary,
    fit_speeds,
    summarize,
)

if TYPE_CHECKING:
    from hetero_airflow.store.sql.store import SqlStore

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)

RUNS_PER_TASK = 32
"""The newest runs of a task are remembered; older ones would weigh less than a sixteenth."""

MAX_TASKS = 5_000
"""The tasks that ran last are remembered."""

MAX_PAIRS = 10_000
"""The pairs of a task and a device class that were measured last are remembered."""

MAX_RECENT = 2_000
"""Runs for `Estimates.finished_s`, and requests for `Estimates.mix`."""


class Learner:
    """Remembers how long runs took, and estimates the next ones.

    The same runs in the same order give the same estimates, in one call or in many. Only finished runs teach durations;
    the parts of a run that paused are added to its last part.

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
        self._requests = PastRequests()
        self._paused: dict[str, ClassSeconds] = {}
        self._measured: dict[tuple[TaskName, str], MeasuredSpeed] = {}
        self._past = PastUse()
        self._last_sequence = self._last_speeds = 0
        self._estimates = NO_ESTIMATES
        self._classes: frozenset[str] = frozenset()

    def refresh(self, history: "SqlStore", device_classes: frozenset[str]) -> Estimates:
        """The estimates after the runs and speeds since the last call; the same object if nothing changed.

        It logs the runs with impossible values.

        :raises StoreUnavailable: the database is down
        """
        runs = history.runs(self._last_sequence)
        self._last_speeds, speeds = history.speeds(self._last_speeds)
        if not runs and not speeds and device_classes == self._classes:
            return self._estimates
        self.learn_speeds(speeds)
        for problem in self.learn(runs):
            log.warning("%s", problem)
        self._last_sequence = runs[-1].sequence if runs else self._last_sequence
        self._classes = device_classes
        self._estimates = self.estimates(device_classes)
        return self._estimates

    def learn(self, runs: Iterable[EndedRun]) -> list[str]:
        """Learn from runs, oldest first; a text for each run with impossible values, from which nothing is learned."""
        problems = []
        for run in runs:
            self._requests.add(run.request_id, run.asked)
            paused = self._paused.pop(run.request_id, {})
            seconds = dict(run.attained_service_s or paused)
            impossible = [s for s in (run.held_s, *seconds.values()) if not (math.isfinite(s) and s >= 0)]
            if impossible:
                problems.append(
                    f"The run {run.request_id} of {'.'.join(run.task)} on {run.device_class} teaches nothing: it is "
                    f"said to have held its devices for {impossible[0]:g} s. Set the clocks of the schedulers' hosts "
                    "by NTP."
                )
                continue
            seconds[run.device_class] = seconds.get(run.device_class, 0.0) + run.held_s
            self._add(run, seconds)
        return problems

    def learn_speeds(self, measured: Iterable[MeasuredSpeed]) -> None:
        """Learn the speeds that tasks reported; each replaces what is known of its task and device class."""
        for speed in measured:
            _put_last(self._measured, (speed.task, speed.device_class), speed, MAX_PAIRS)

    def _add(self, run: EndedRun, seconds: ClassSeconds) -> None:
        """Learn from a run and the time for which it held its devices, earlier parts included."""
        if run.end is not RunEnd.PAUSED:
            used = {name: run.devices * class_s for name, class_s in seconds.items()}
            self._past.add(run.task[0], used, run.ended_at)
        bounded = {name: min(max(class_s, MIN_RUN_S), MAX_DURATION_S) for name, class_s in seconds.items()}
        if run.end is RunEnd.PAUSED:
            _put_last(self._paused, run.request_id, bounded)
        elif run.end is RunEnd.FINISHED:
            runs = self._runs.get(run.task) or deque(maxlen=RUNS_PER_TASK)
            runs.append(bounded)
            _put_last(self._runs, run.task, runs, MAX_TASKS)
            self._summaries.pop(run.task, None)
            self._recent.append((run.task, bounded))

    def estimates(self, device_classes: frozenset[str]) -> Estimates:
        """The estimates of all runs so far, also for device classes on which a task never ran."""
        self._summaries = {
            task: self._summaries.get(task) or summarize(tuple(runs)) for task, runs in self._runs.items()
        }
        fitted = fit_speeds(self._summaries, device_classes)
        fitted = with_measured_speeds(fitted, self._measured.values(), self._runs, self._summaries)
        return Estimates(
            fitted.speeds,
            fitted.works,
            self._finished_s(fitted),
            self._requests.mix,
            fitted.default_speeds,
            used_device_s=self._past.device_s(),
            used_at=self._past.at,
            speed_deviations=fitted.deviations,
            reported_ends={lease_id: at for speed in self._measured.values() for lease_id, at in speed.ends.items()},
        )

    def _finished_s(self, fitted: FittedSpeeds) -> tuple[float, ...]:
        """How long the recent runs would take on the fastest class of their task, in increasing order."""
        finished_s = []
        for task, seconds in self._recent:
            speeds = fitted.speeds.get(task, {})
            if seconds.keys() <= speeds.keys():
                work = math.fsum(class_s * speeds[name] for name, class_s in seconds.items())
                finished_s.append(min(max(work / max(speeds.values()), MIN_RUN_S), MAX_DURATION_S))
        return tuple(sorted(finished_s))


class PastRequests:
    """Counts the latest requests by their first alternatives.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> past = PastRequests()
    >>> for number, word in enumerate(("gpu", "gpu", "cpu")):
    ...     past.add(f"r{number}", DeviceRequest.parse(word).alternatives[0])
    >>> [(str(alternative), round(part, 2)) for alternative, part in past.mix]
    [('1 × gpu', 0.67), ('1 × cpu', 0.33)]
    """

    def __init__(self) -> None:
        self._alternatives: dict[str, Alternative] = {}
        """By the id of the request."""
        self._new = 0
        self.mix: tuple[tuple[Alternative, float], ...] = ()
        """See `Estimates.mix`. It changes after each sixteenth of the requests, because policies make tables of it."""

    def add(self, request_id: str, alternative: Alternative) -> None:
        """Count a request. The parts of one request count once."""
        _put_last(self._alternatives, request_id, alternative)
        self._new += 1
        if 16 * self._new >= len(self._alternatives):
            counts = Counter(self._alternatives.values())
            ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0].key))
            self.mix = tuple((alternative, count / counts.total()) for alternative, count in ordered)
            self._new = 0


class PastUse:
    """Adds up the device-time of runs.

    >>> from datetime import timedelta
    >>> from hetero_airflow.testing import EPOCH
    >>> past = PastUse()
    >>> past.add("dag", {"nvidia/v100": 100.0}, EPOCH)
    >>> past.add("dag", {"nvidia/v100": 100.0}, EPOCH + timedelta(days=1))
    >>> past.device_s()
    {'dag': {'nvidia/v100': 150.0}}
    """

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], tuple[float, datetime]] = {}
        self.at: datetime | None = None
        """The time to which `device_s` is decayed: the latest end of a run."""

    def add(self, dag_id: str, device_s: Mapping[str, float], ended_at: datetime) -> None:
        """Add a run.

        :param device_s: device class → devices × seconds
        """
        self.at = ended_at if self.at is None else max(self.at, ended_at)
        for name, amount in device_s.items():
            before, at = self._used.get((dag_id, name), (0.0, ended_at))
            latest = max(at, ended_at)
            total = decayed(before, at, latest) + decayed(amount, ended_at, latest)
            self._used[dag_id, name] = (total, latest)

    def device_s(self) -> dict[str, dict[str, float]]:
        """DAG id → device class → device-seconds, decayed until `at`."""
        if self.at is None:
            return {}
        device_s: dict[str, dict[str, float]] = {}
        for (dag_id, name), (amount, at) in self._used.items():
            device_s.setdefault(dag_id, {})[name] = decayed(amount, at, self.at)
        return device_s


def device_classes(workers: Iterable[Worker]) -> frozenset[str]:
    """The device classes of the workers."""
    return frozenset(device_class(device) for worker in workers for device in worker.devices)


def _put_last(values: dict[K, V], key: K, value: V, limit: int = MAX_RECENT) -> None:
    """Put the value at the end, and drop the oldest ones beyond the limit."""
    values.pop(key, None)
    values[key] = value
    while len(values) > limit:
        del values[next(iter(values))]
