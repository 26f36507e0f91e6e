"""Joins the speeds that tasks reported with what the lengths of runs teach. Pure.

A task that waits for data gains little from a faster class. If it says for how much of its time it waits, only the rest
of a step is faster on another class (Amdahl, AFIPS Spring Joint Computer Conference, 1967). A loader that loads ahead
hides a part of the wait on a slower class, so the estimate is on the safe side until that class was measured, too.

Lengths of runs say little of speed: runs of one task differ in their work. So as soon as any task reports steps, the
model of `class_speeds` gives the speeds. The lengths then teach the amount of work. The speeds of tasks that report no
steps come from the same model: there, the lengths of runs are measurements as uncertain as the lengths differ.
"""

import math
from collections.abc import Iterable, Mapping

from hetero_airflow.model.estimates import Interval, TaskName
from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.scheduling.learning.class_speeds import TaskSpeeds, fit_class_speeds
from hetero_airflow.scheduling.learning.speed_fit import (
    ClassSeconds,
    FittedSpeeds,
    TaskSummary,
    weighted_median,
)

_UNKNOWN_DEVIATION = 10.0
"""A measurement that gives only the unit of a task."""

_MAX_WAIT = 0.95
"""A task that waits for data all the time still says something of its computing."""


def with_measured_speeds(
    fitted: FittedSpeeds,
    measured: Iterable[MeasuredSpeed],
    runs: Mapping[TaskName, Iterable[ClassSeconds]],
    summaries: Mapping[TaskName, TaskSummary],
) -> FittedSpeeds:
    """What is known with the reported speeds; `fitted` itself if there are none.

    The speeds of a task that reports are in its steps a second, and its work is in steps.

    :param measured: in the order in which they were measured

    >>> fitted = FittedSpeeds({}, {}, {"nvidia/v100": 1.0, "nvidia/k80": 0.2})
    >>> measured = MeasuredSpeed(("dag", "train"), "nvidia/v100", math.log(12.0), 0.05, 720, 60.0)
    >>> joined = with_measured_speeds(fitted, [measured], {}, {})
    >>> {name: round(speed, 1) for name, speed in joined.speeds["dag", "train"].items()}
    {'nvidia/k80': 1.9, 'nvidia/v100': 12.0}
    """
    rows: dict[TaskName, dict[str, tuple[float, float]]] = {}
    waits: dict[TaskName, dict[str, float]] = {}
    for speed in measured:
        share = min(speed.shares.data, _MAX_WAIT) if speed.shares else 0.0
        log = speed.log_speed - math.log1p(-share)
        rows[speed.task] = {**rows.pop(speed.task, {}), speed.device_class: (log, speed.deviation)}
        waits.setdefault(speed.task, {})[speed.device_class] = share * math.exp(-speed.log_speed)
    if not rows:
        return fitted
    ran_on = {name for summary in summaries.values() for name in (*summary.parts, *summary.measured)}
    model = fit_class_speeds(rows, {*fitted.default_speeds, *ran_on})
    by_steps = {task: _with_waits(of_task, waits[task]) for task, of_task in model.speeds(rows).items()}
    lengths = {task: _typical_lengths(fitted, task, summary) for task, summary in summaries.items() if task not in rows}
    by_lengths = model.speeds(lengths)
    speeds = {task: _speeds(of_task) for task, of_task in (by_lengths | by_steps).items()}
    works = {task: _work(fitted.works[task], runs[task], speeds[task]) for task in fitted.works}
    return FittedSpeeds(
        speeds, works, model.default_speeds(), {task: of_task.deviations for task, of_task in by_steps.items()}
    )


def _typical_lengths(fitted: FittedSpeeds, task: TaskName, summary: TaskSummary) -> dict[str, tuple[float, float]]:
    """Device class → logarithm of typical runs a second and its standard deviation, for a task without steps."""
    work = fitted.works[task]
    variance = work.log_deviation**2 * math.pi / 2
    lengths = {name: (-log, math.sqrt(variance / weight)) for name, (log, weight) in summary.measured.items()}
    if not lengths:
        main = max(summary.parts, key=lambda name: (summary.parts[name], name))
        lengths = {main: (math.log(fitted.speeds[task][main]), _UNKNOWN_DEVIATION)}
    return lengths


def _with_waits(computing: TaskSpeeds, waits: Mapping[str, float]) -> TaskSpeeds:
    """The speeds of a task, from those of its computing and the seconds for which it waits for data in each step.

    :param waits: device class → seconds in a step; other classes get their mean
    """
    usual_s = math.fsum(waits.values()) / len(waits)
    logs = {name: log - math.log1p(waits.get(name, usual_s) * math.exp(log)) for name, log in computing.logs.items()}
    return TaskSpeeds(logs, computing.deviations)


def _speeds(task_speeds: TaskSpeeds) -> dict[str, float]:
    return {name: math.exp(log) for name, log in task_speeds.logs.items()}


def _work(typical: Interval, runs: Iterable[ClassSeconds], speeds: Mapping[str, float]) -> Interval:
    """The work of a run, in the unit of the speeds.

    :param typical: where the typical work is 1
    """
    works = [math.fsum(seconds * speeds.get(name, 0.0) for name, seconds in run.items()) for run in runs]
    middle = weighted_median((work, 1.0) for work in works if work > 0)
    return Interval(typical.low * middle, typical.middle * middle, typical.high * middle)
