"""Fractions of time from a linear program, turned into rounds. Pure.

Gavel (Narayanan et al., OSDI 2020): section 4 maximises an objective over X, where ``X[j, k]`` is the
fraction of time that job j spends on class k; section 5 gives each pair (j, k) in every round the priority
X / (fraction of time received so far) and serves the highest that fit. Here the program is

    maximise  t + tie · mean over j of g(j)   with   g(j) = Σ_k X[j, k] · speed[j, k] / norm[j] ≥ t,
    Σ_k X[j, k] ≤ 1,   Σ_j devices[j] · X[j, k] ≤ devices of class k

where a policy chooses the norms. Deviations: the fraction received is of all the time since the request was
submitted, since a pure policy remembers nothing of when the fractions last changed; the second term of the objective
decides between optima, of which the program alone would leave most jobs at the least of all; the choice of
a round is an assignment of the greatest sum of priorities (`transport`), not a walk down the list, so that of several
ways to serve the same jobs the one without moves is taken; and a class of fraction 0 is worth little, not nothing, so
that no device is idle that somebody could use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import Matrix, WeightedAssignment
from hetero_airflow.policies.core.linear_program import Floats, Numbers, minimise

ROUND_S = 360.0
"""Gavel's."""

_TIE = 1e-3
_LITTLE = 1e-4
_LEAST_RECEIVED = 0.01
"""A request that has received less than this fraction has the priority of one that has received so much."""

Norm = Callable[[Candidate, Floats, AssignmentProblem], float]
"""What a job's mean speed is measured by, given its relative speed on each class, the classes in order; above 0."""


class RoundPolicy(WeightedAssignment):
    """A policy made of norms: the smaller a job's norm, the less of the devices' time it gets."""

    period_s = ROUND_S

    def __init__(self, name: str, norm: Norm) -> None:
        super().__init__(name, lambda one, mean_run_s: 1.0, 1.0)
        self._norm = norm
        self._fractions = lru_cache(maxsize=64)(fractions)

    def _values(self, found: AssignmentProblem, names: list[str]) -> Matrix:
        """The priority of each pair: target by received."""
        speeds = np.array([[one.speeds.get(name, 0.0) for name in names] for one in found.contenders])
        norms = [self._norm(one, row, found) for one, row in zip(found.contenders, speeds, strict=True)]
        target = self._fractions(
            tuple(map(tuple, speeds.tolist())),
            tuple(norms),
            tuple(one.count for one in found.contenders),
            tuple(found.capacities[name] for name in names),
        )
        received = np.array([_received(one, names) for one in found.contenders])
        priority: Matrix = (target + _LITTLE * speeds) / np.maximum(received, _LEAST_RECEIVED)
        return priority


def _received(one: Candidate, names: list[str]) -> list[float]:
    """Fraction of the time since it was submitted that it spent on each class."""
    age_s = one.attained_service_s + one.delayed_s
    return [one.held_s.get(name, 0.0) / age_s if age_s > 0 else 0.0 for name in names]


def fractions(
    speeds: tuple[tuple[float, ...], ...],
    norms: tuple[float, ...],
    counts: tuple[int, ...],
    capacities: tuple[int, ...],
) -> Floats:
    """X of the module's program: ``float [jobs, classes]``.

    :param speeds: relative speed of each job on each class
    :param norms: what each job's mean speed is measured by, above 0
    :param counts: devices that each job takes
    """
    table = np.array(speeds).reshape(len(norms), len(capacities))
    jobs, classes = table.shape
    gain = table / np.array(norms)[:, None]
    cost = np.append(-_TIE / max(jobs, 1) * gain.ravel(), -1.0)
    pair = np.arange(jobs * classes, dtype=np.int64)
    job, on = np.divmod(pair, classes)
    last = np.full(jobs, jobs * classes, np.int64)
    rows = np.concatenate([job, np.arange(jobs), jobs + job, 2 * jobs + on])
    columns = np.concatenate([pair, last, pair, pair])
    values = np.concatenate([-gain.ravel(), np.ones(jobs), np.ones(len(pair)), np.array(counts, float)[job]])
    limits = np.concatenate([np.zeros(jobs), np.ones(jobs), np.array(capacities, float)])
    is_there = values != 0
    entries: tuple[Numbers, Numbers, Floats] = (rows[is_there], columns[is_there], values[is_there])
    solution = minimise(cost, entries, limits)
    assert solution is not None, "all zeros is feasible, and no fraction is above 1"
    return solution.columns[:-1].reshape(jobs, classes)
