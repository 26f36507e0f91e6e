"""Estimates speeds and amounts of work from runs: medians, shrunk towards those of similar tasks. Pure.

The model, in logarithms: seconds of a run = level of its task − speed of the device class + noise. A level is in
seconds on a device of speed 1 (a V100). All figures are weighted medians, so that a few outliers do not move them, and
newer runs weigh more. Each figure is then shrunk towards a wider one, which counts as a number of runs, as in empirical
Bayes with known ratios of variances (Morris, JASA 78, 1983): a task's level towards that of its DAG, this towards that
of all tasks; the measured seconds on a class towards those by the level and the data sheets; the data sheets towards
what tasks on several classes show here.

The model ignores that a preempted run spends time restoring, and that another number of devices makes another task.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hetero_airflow.model.devices.speeds import data_sheet_speed
from hetero_airflow.model.estimates import MAX_DURATION_S, Interval, TaskName

HALF_LIFE_RUNS = 8.0
"""Runs of a task after which an older one weighs half."""

TASK_PRIOR = 0.1
"""The DAG's typical level counts as this many runs. Durations of one task differ by a factor of about 1.5, those of a
DAG's tasks by 4 and more; (ln 1.5 / ln 4)² is 0.09."""

DAG_PRIOR = 1.0
"""The typical level of all tasks counts as this many tasks."""

CLASS_PRIOR = 0.5
"""The data sheets count as this many runs on a device class. They are off by a factor of 1.6 in the median (see
`devices.speeds.COMPUTE_WEIGHT`), runs differ by 1.5; (ln 1.5 / ln 1.6)² is 0.7, less since runs are of this cluster."""

SHEET_PRIOR = 2.0
"""A data sheet counts as this many tasks that were measured on several classes."""

SPREAD_PRIOR = 4.0
"""The usual spread counts as this many runs."""

USUAL_SPREAD = math.log(1.5)
"""The spread before there are runs: of ten, one is shorter than the median by this factor, and one is longer."""

MAX_DEVIATION = math.log(20.0)
"""A run counts at most as 20 times its task's typical time, and at least as a twentieth."""

MIN_RUN_S = 1e-3
"""A shorter run counts as this long."""

_MIN_SPREAD = math.log(1.01)
_MANY_RUNS = 5
_SINGLE_CLASS_SHARE = 0.95
"""A run with this share of its seconds on one class measures that class."""

ClassSeconds = Mapping[str, float]
"""Device class → seconds for which one finished run held such devices; finite, above zero, not empty."""


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """The runs of one task alone; in logarithms of seconds."""

    weight: float
    """The weight of all runs: 1 for the newest, less for older ones."""
    measured: Mapping[str, tuple[float, float]]
    """Device class → typical seconds of runs on it alone, and their weight."""
    level: float
    """Typical seconds on a device of speed 1, by the data sheets."""
    parts: Mapping[str, float]
    """Device class → its part of the weight of the runs in the level."""
    by_sheets: bool
    """False if no data sheet relates the classes: then each counts as a device of speed 1."""
    spread: tuple[float, float]
    """How far the 10 % and the 90 % quantile of the runs are from the median."""


@dataclass(frozen=True, slots=True)
class FittedSpeeds:
    """The estimates of all runs, as in `Estimates`; one unit of work is a task's typical run."""

    speeds: Mapping[TaskName, Mapping[str, float]]
    works: Mapping[TaskName, Interval]
    default_speeds: Mapping[str, float]
    deviations: Mapping[TaskName, Mapping[str, float]] = field(default_factory=dict)


def summarize(runs: Sequence[ClassSeconds]) -> TaskSummary:
    """The summary of a task's finished runs, oldest first; at least one.

    >>> summary = summarize([{"nvidia/v100": 100.0}, {"nvidia/v100": 110.0}, {"nvidia/v100": 1e9}])
    >>> round(math.exp(summary.level))
    110
    """
    weighted = [(run, 0.5 ** ((len(runs) - 1 - rank) / HALF_LIFE_RUNS)) for rank, run in enumerate(runs)]
    by_class: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for run, weight in weighted:
        main = max(run, key=lambda name: (run[name], name))
        if run[main] >= _SINGLE_CLASS_SHARE * math.fsum(run.values()):
            by_class[main].append((math.log(run[main]), weight))
    measured = {
        name: (weighted_median(pairs), math.fsum(w for _, w in pairs)) for name, pairs in sorted(by_class.items())
    }
    related = [(run, weight) for run, weight in weighted if all(data_sheet_speed(name) for name in run)]
    levels = [(_log_work(run, _log_sheet_speed), weight) for run, weight in related or weighted]
    level = weighted_median(levels)
    speeds = {name: _log_sheet_speed(name) - level for run, _ in weighted for name in run}
    speeds |= {name: -log for name, (log, _) in measured.items()}
    parts = Counter[str]()
    for run, weight in related or weighted:
        total = math.fsum(run.values())
        for name, seconds in run.items():
            parts[name] += weight * seconds / total
    spread = _spread([(_log_work(run, speeds.__getitem__), weight) for run, weight in weighted])
    total = math.fsum(parts.values())
    shares = {name: part / total for name, part in sorted(parts.items())}
    return TaskSummary(math.fsum(w for _, w in weighted), measured, level, shares, bool(related), spread)


def fit_speeds(tasks: Mapping[TaskName, TaskSummary], device_classes: Iterable[str]) -> FittedSpeeds:
    """Speeds of each task on each class on which it ran, and on those of the given classes that have a data sheet.

    >>> hundred = summarize([{"nvidia/v100": 100.0}] * 20)
    >>> fitted = fit_speeds({("dag", "train"): hundred}, {"nvidia/v100", "nvidia/a100", "acme/x1"})
    >>> {name: round(1 / speed) for name, speed in fitted.speeds["dag", "train"].items()}
    {'nvidia/a100': 53, 'nvidia/v100': 100}
    >>> fitted.works["dag", "train"].middle
    1.0
    """
    tasks = dict(sorted(tasks.items()))
    ran_on = {name for task in tasks.values() for name in task.parts}
    rated = sorted(name for name in ran_on | {*device_classes} if data_sheet_speed(name))
    corrections = _corrections(rated, tasks.values())
    sheets = {name: _log_sheet_speed(name) + corrections[name] for name in rated}
    levels = {
        name: task.level + math.fsum(part * corrections.get(of, 0.0) for of, part in task.parts.items())
        for name, task in tasks.items()
    }
    typical = _typical_levels(tasks, levels)
    speeds = {}
    for name, task in tasks.items():
        level = _shrunk(levels[name], task.weight, typical[name], TASK_PRIOR)
        seconds = _seconds(task, level, sheets)
        speeds[name] = {of: math.exp(-log) for of, log in seconds.items()}
    return FittedSpeeds(speeds, _works(tasks), {name: math.exp(log) for name, log in sheets.items()})


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float:
    """The value of (value, weight) pairs with at most half of the weight on each side; the mean if there are two.

    >>> weighted_median([(1.0, 1.0), (2.0, 1.0), (1e9, 1.5)]), weighted_median([(1.0, 1.0), (3.0, 1.0)])
    (2.0, 2.0)
    """
    ordered = sorted(pairs)
    half = math.fsum(weight for _, weight in ordered) / 2
    below = 0.0
    for (value, weight), (following, _) in pairwise(ordered):
        below += weight
        if below >= half:
            return value if below > half else (value + following) / 2
    return ordered[-1][0]


def _quantile(pairs: Iterable[tuple[float, float]], part: float) -> float:
    """The value below which that part of the weight lies; linear between the centres of neighbouring weights."""
    ordered = sorted(pairs)
    total = math.fsum(weight for _, weight in ordered)
    below, before = 0.0, (0.0, ordered[0][0])
    for value, weight in ordered:
        middle = (below + weight / 2) / total
        if middle >= part:
            width = middle - before[0]
            return value if width <= 0 else before[1] + (value - before[1]) * (part - before[0]) / width
        below, before = below + weight, (middle, value)
    return ordered[-1][0]


def _median(values: Iterable[float]) -> float:
    return weighted_median((value, 1.0) for value in values)


def _log_sheet_speed(device_class: str) -> float:
    return math.log(data_sheet_speed(device_class) or 1.0)


def _log_work(run: ClassSeconds, speed_log: Callable[[str], float]) -> float:
    """The logarithm of a run's work.

    :param speed_log: device class → logarithm of its speed
    """
    if len(run) == 1:
        ((name, seconds),) = run.items()
        return math.log(seconds) + speed_log(name)
    return math.log(math.fsum(seconds * math.exp(speed_log(name)) for name, seconds in run.items()))


def _shrunk(measured: float, weight: float, prior: float, prior_weight: float) -> float:
    return (weight * measured + prior_weight * prior) / (weight + prior_weight)


def _spread(works: Sequence[tuple[float, float]]) -> tuple[float, float]:
    middle = weighted_median(works)
    deviations = [(min(max(log - middle, -MAX_DEVIATION), MAX_DEVIATION), weight) for log, weight in works]
    return -_quantile(deviations, 0.1), _quantile(deviations, 0.9)


def _seconds(task: TaskSummary, level: float, sheets: Mapping[str, float]) -> dict[str, float]:
    """Device class → the logarithm of the seconds of a typical run on it."""
    logs = {name: level - log for name, log in sheets.items()} if task.by_sheets else {}
    for name, (log, weight) in task.measured.items():
        logs[name] = _shrunk(log, weight, logs[name], CLASS_PRIOR) if name in logs else log
    logs = logs or dict.fromkeys(task.parts, level)
    shortest, longest = math.log(MIN_RUN_S), math.log(MAX_DURATION_S)
    return {name: min(max(logs[name], shortest), longest) for name in sorted(logs)}


def _corrections(rated: Iterable[str], tasks: Iterable[TaskSummary]) -> dict[str, float]:
    """Device class → what tasks on several classes show to add to the logarithm of its data sheet's speed."""
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for task in tasks:
        measured = {name: log for name, (log, _) in task.measured.items() if data_sheet_speed(name)}
        for name, log in measured.items() if len(measured) > 1 else ():
            errors[name].append(task.level - log - _log_sheet_speed(name))
    return {
        name: _shrunk(_median(errors[name]), len(errors[name]), 0.0, SHEET_PRIOR) if name in errors else 0.0
        for name in rated
    }


def _typical_levels(tasks: Mapping[TaskName, TaskSummary], levels: Mapping[TaskName, float]) -> dict[TaskName, float]:
    """Task → the typical level of its DAG's tasks, shrunk towards that of all tasks with the same kind of level."""
    everywhere: defaultdict[bool, list[float]] = defaultdict(list)
    by_dag: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    for name, level in levels.items():
        everywhere[tasks[name].by_sheets].append(level)
        by_dag[name[0], tasks[name].by_sheets].append(level)
    overall = {kind: _median(logs) for kind, logs in everywhere.items()}
    typical = {key: _shrunk(_median(logs), len(logs), overall[key[1]], DAG_PRIOR) for key, logs in by_dag.items()}
    return {name: typical[name[0], tasks[name].by_sheets] for name in tasks}


def _works(tasks: Mapping[TaskName, TaskSummary]) -> dict[TaskName, Interval]:
    """Task → a run's work, where the typical work is 1.

    The interval includes the error of the typical work: a median of n values has π/2n of their variance.
    """
    many = [task.spread for task in tasks.values() if task.weight >= _MANY_RUNS]
    usual = [_median([USUAL_SPREAD, *(spread[side] for spread in many)]) for side in (0, 1)]
    works = {}
    for name, task in tasks.items():
        error = math.sqrt(1 + math.pi / 2 * max(len(task.measured), 1) / task.weight)
        spreads = (_shrunk(task.spread[side], task.weight, usual[side], SPREAD_PRIOR) for side in (0, 1))
        below, above = (max(spread, _MIN_SPREAD) * error for spread in spreads)
        works[name] = Interval(math.exp(-below), 1.0, math.exp(above))
    return works
