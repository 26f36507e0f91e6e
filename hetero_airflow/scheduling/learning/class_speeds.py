"""How fast each task is on each device class, from the pairs of both that were measured. Pure.

The model, in logarithms: speed of a task on a class = unit of the task + x, where x over the classes is normal with a
mean m and a covariance S that all tasks share. Nothing is known of the unit: a step of one task is not a step of
another. So only differences between classes count, and a task that was measured on one class teaches only its unit.
m begins as the data sheets say, S as independent errors of `SHEET_DEVIATION`. Tasks that were measured on several
classes then teach both by expectation maximisation (Dempster, Laird and Rubin, J. R. Stat. Soc. B 39, 1977; for a
normal distribution with missing values: Little and Rubin, "Statistical Analysis with Missing Data", section 11.2). It
starts anew from the data sheets each time, so the same pairs give the same model in any order and after a restart (up
to `MAX_TEACHING_TASKS` tasks).

A false report has a bounded influence: a difference between two classes counts at most as `MAX_ERROR` away from the
mean of all tasks, and a task far from the others weighs less in m and S (Huber's weights).
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetero_airflow.model.devices.speeds import data_sheet_speed
from hetero_airflow.model.estimates import TaskName

SHEET_DEVIATION = 0.5
"""Standard deviation of the error of a data sheet, and of a task's own difference; in natural logarithms. Data sheets
are off by a factor of 1.6 in the median (see `devices.speeds.COMPUTE_WEIGHT`)."""

UNKNOWN_DEVIATION = 1.5
"""The same for a class without a data sheet, which begins with the mean of the others."""

MEAN_PRIOR = 1.0
"""The data sheets count as this many tasks in the mean."""

COVARIANCE_PRIOR = 3.0
"""The first covariance counts as this many tasks."""

MIN_DEVIATION = 0.02
"""No measurement is taken for more exact: hosts of one class differ by more."""

MAX_ERROR = math.log(20.0)
"""How far a measured difference can be from the mean of all tasks."""

FAR = 3.0
"""A task whose error is larger than this many standard deviations weighs less."""

MAX_TEACHING_TASKS = 1_000
"""The tasks that teach mean and covariance: those measured last."""

STEPS = 10
"""Steps of expectation maximisation. On Gavel's table, 20 change no speed by more than 1 %."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

Measured = Mapping[TaskName, Mapping[str, tuple[float, float]]]
"""Task → device class → logarithm of its speed, in a unit of the task, and its standard deviation."""


@dataclass(frozen=True, slots=True)
class TaskSpeeds:
    """The speeds of a task by the model."""

    logs: Mapping[str, float]
    """Device class → the logarithm of the speed, in the unit of the task."""
    deviations: Mapping[str, float]
    """Device class → the standard deviation of the difference to the fastest class that was measured; 0 there."""


@dataclass(frozen=True)
class ClassSpeeds:
    """The fitted model."""

    classes: tuple[str, ...]
    mean: Vector
    covariance: Matrix

    @cached_property
    def _precision(self) -> Matrix:
        return np.asarray(np.linalg.inv(self.covariance), np.float64)

    def default_speeds(self) -> dict[str, float]:
        """Device class → speed relative to others, for a task of which nothing was measured."""
        return {name: math.exp(log) for name, log in zip(self.classes, self.mean.tolist(), strict=True)}

    def speeds(self, measured: Measured) -> dict[TaskName, TaskSpeeds]:
        """The speeds of tasks that were measured on at least one class each.

        >>> train = ("dag", "train")
        >>> model = fit_class_speeds({}, ["nvidia/v100", "nvidia/k80"])
        >>> speeds = model.speeds({train: {"nvidia/k80": (0.0, 0.02)}})[train]
        >>> round(math.exp(speeds.logs["nvidia/v100"]), 1), round(speeds.deviations["nvidia/v100"], 1)
        (6.2, 0.7)
        """
        if not measured:
            return {}
        values, weights = _rows(measured.values(), self.classes)
        values = _bounded(values, weights, self.mean)
        means, covariances = self._posterior(values, weights)
        units = (weights * (values - means)).sum(axis=1) / weights.sum(axis=1)
        logs = (means + units[:, None]).tolist()
        best = np.argmax(np.where(weights > 0, means, -np.inf), axis=1)
        rows = np.arange(len(best))
        variances = np.einsum("tcc->tc", covariances) + covariances[rows, best, best][:, None]
        variances -= 2 * covariances[rows, best]
        deviations = np.sqrt(np.maximum(variances, 0.0)).tolist()
        return {
            task: TaskSpeeds(dict(zip(self.classes, log, strict=True)), dict(zip(self.classes, deviation, strict=True)))
            for task, log, deviation in zip(measured, logs, deviations, strict=True)
        }

    def _posterior(self, values: Matrix, weights: Matrix) -> tuple[Matrix, NDArray[np.float64]]:
        """Means ``[tasks, classes]`` and covariances ``[tasks, classes, classes]``, without the units.

        :param values: measured logarithms, 0 where there are none
        :param weights: 1 / variance, 0 where nothing was measured
        """
        totals = weights.sum(axis=1)[:, None, None]
        information = np.einsum("tc,cd->tcd", weights, np.eye(len(self.classes)))
        information -= weights[:, :, None] * weights[:, None, :] / np.where(totals > 0, totals, 1.0)
        covariances = np.linalg.inv(self._precision + information)
        pulls = self._precision @ self.mean + np.einsum("tcd,td->tc", information, values)
        return np.einsum("tcd,td->tc", covariances, pulls), covariances

    def _improved(self, values: Matrix, weights: Matrix, sheets: Vector, prior: Matrix) -> "ClassSpeeds":
        """The model after one step of expectation maximisation."""
        means, covariances = self._posterior(_bounded(values, weights, self.mean), weights)
        errors = means - self.mean
        distances = np.sqrt(np.einsum("tc,cd,td->t", errors, self._precision, errors))
        parts = FAR / np.maximum(distances, FAR)
        total = float(parts.sum())
        mean = (MEAN_PRIOR * sheets + parts @ means) / (MEAN_PRIOR + total)
        errors = means - mean
        spread = np.einsum("t,tcd->cd", parts, covariances) + np.einsum("t,tc,td->cd", parts, errors, errors)
        offset = (mean - sheets)[:, None]
        spread += COVARIANCE_PRIOR * prior + MEAN_PRIOR * offset @ offset.T
        return ClassSpeeds(self.classes, mean, spread / (COVARIANCE_PRIOR + MEAN_PRIOR + total))


def fit_class_speeds(measured: Measured, classes: Iterable[str]) -> ClassSpeeds:
    """The model of all measured tasks, for these classes and those that were measured.

    :param measured: the task that was measured last is the last one

    >>> taught = {("dag", f"task{n}"): {"nvidia/v100": (0.0, 0.02), "nvidia/k80": (-1.0, 0.02)} for n in range(20)}
    >>> speeds = fit_class_speeds(taught, []).default_speeds()
    >>> round(math.log(speeds["nvidia/v100"] / speeds["nvidia/k80"]), 1)
    1.0
    """
    names = tuple(sorted({*classes, *(name for row in measured.values() for name in row)}))
    sheets = {name: math.log(speed) for name in names if (speed := data_sheet_speed(name))}
    usual = math.fsum(sheets.values()) / len(sheets) if sheets else 0.0
    mean = np.array([sheets.get(name, usual) for name in names])
    prior = np.diag([(SHEET_DEVIATION if name in sheets else UNKNOWN_DEVIATION) ** 2 for name in names])
    model = ClassSpeeds(names, mean, prior)
    teaching = [(task, row) for task, row in measured.items() if len(row) > 1][-MAX_TEACHING_TASKS:]
    if not teaching:
        return model
    values, weights = _rows([row for _, row in sorted(teaching)], names)
    for _ in range(STEPS):
        model = model._improved(values, weights, mean, prior)
    return model


def _rows(rows: Collection[Mapping[str, tuple[float, float]]], classes: tuple[str, ...]) -> tuple[Matrix, Matrix]:
    """Values and weights (1 / variance) of tasks: ``[tasks, classes]``, 0 where nothing was measured."""
    column = {name: number for number, name in enumerate(classes)}
    values, weights = np.zeros((2, len(rows), len(classes)))
    for number, row in enumerate(rows):
        for name, (value, deviation) in row.items():
            values[number, column[name]] = value
            weights[number, column[name]] = max(deviation, MIN_DEVIATION) ** -2
    return values, weights


def _bounded(values: Matrix, weights: Matrix, mean: Vector) -> Matrix:
    """The values with errors of at most `MAX_ERROR` around the median error of their task."""
    has_weight = weights > 0
    errors = np.where(has_weight, values - mean, np.nan)
    middle = np.nanmedian(errors, axis=1, keepdims=True)
    bounded: Matrix = np.where(has_weight, mean + middle + np.clip(errors - middle, -MAX_ERROR / 2, MAX_ERROR / 2), 0.0)
    return bounded
