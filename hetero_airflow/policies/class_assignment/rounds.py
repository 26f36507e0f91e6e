"""The base of policies that turn the time fractions of a linear program into rounds. Pure.

Gavel (Narayanan et al., OSDI 2020): section 4 maximises an objective over X, where ``X[j, k]`` is the fraction of time
that job j spends on class k. Section 5 gives each pair (j, k) in every round the priority X / (fraction of time
received so far) and serves the highest that fit. Here the program is

    maximise  t + tie · mean over j of g(j)   with   g(j) = Σ_k X[j, k] · speed[j, k] / norm[j] ≥ t,
    Σ_k X[j, k] ≤ 1,   Σ_j devices[j] · X[j, k] ≤ devices of class k

where a policy chooses the norms. Deviations:

- The received fraction is of all time since the submission: a pure policy does not know when the fractions changed.
- The second term of the objective decides between optima. Without it, most jobs would get the least of all.
- A round is the assignment with the greatest sum of priorities (`solver`) and not a walk down the list. So of several
  ways to serve the same jobs the one without moves is taken.
- A class of fraction 0 has a small priority instead of none, so that no usable device is idle.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment
from hetero_airflow.policies.core.linear_program import Floats, Numbers, minimise

ROUND_S = 360.0
"""As in Gavel."""

_TIE = 1e-3
_SMALL_PRIORITY = 1e-4
_LEAST_RECEIVED = 0.01
"""A request that has received a smaller fraction is treated as if it had received this one."""

Norm = Callable[[Candidate, Floats, AssignmentProblem], float]
"""The divisor of a job's mean speed, above 0, by its relative speeds on the classes in order."""


class RoundPolicy(WeightedAssignment):
    """A policy made of norms: a job with a smaller norm gets less device time."""

    period_s = ROUND_S

    def __init__(self, name: str, norm: Norm) -> None:
        super().__init__(name, lambda candidate, mean_run_s: 1.0, 1.0)
        self._norm = norm
        self._fractions = lru_cache(maxsize=64)(fractions)

    def _class_weights(self, problem: AssignmentProblem, names: list[str]) -> Floats:
        """The priority of each pair: target fraction divided by received fraction."""
        candidates = problem.candidates
        speeds = np.array([[candidate.speeds.get(name, 0.0) for name in names] for candidate in candidates])
        norms = [self._norm(candidate, row, problem) for candidate, row in zip(candidates, speeds, strict=True)]
        target = self._fractions(
            tuple(map(tuple, speeds.tolist())),
            tuple(norms),
            tuple(candidate.count for candidate in candidates),
            tuple(problem.capacities[name] for name in names),
        )
        received = np.array([_received(candidate, names) for candidate in candidates])
        priority: Floats = (target + _SMALL_PRIORITY * speeds) / np.maximum(received, _LEAST_RECEIVED)
        return priority


def _received(candidate: Candidate, names: list[str]) -> list[float]:
    """The fraction of the time since its submission that it spent on each class."""
    age_s = candidate.done_s + candidate.delayed_s
    return [candidate.held_s.get(name, 0.0) / age_s if age_s > 0 else 0.0 for name in names]


def fractions(
    speeds: tuple[tuple[float, ...], ...],
    norms: tuple[float, ...],
    counts: tuple[int, ...],
    capacities: tuple[int, ...],
) -> Floats:
    """X of the module's program: ``float [jobs, classes]``. Jobs that differ in nothing have equal fractions.

    So the program has one row for all of them: the mean of equal jobs' fractions in an optimum is an optimum too.

    :param speeds: relative speed of each job on each class
    :param norms: the divisor of each job's mean speed, above 0
    :param counts: devices that each job takes
    """
    classes = len(capacities)
    table = np.column_stack([np.array(speeds).reshape(len(norms), classes), norms, counts])
    jobs, kind_of, members = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    number = len(jobs)
    gain, devices = jobs[:, :classes] / jobs[:, [classes]], jobs[:, -1] * members
    cost = np.append(-_TIE / max(len(norms), 1) * (members[:, None] * gain).ravel(), -1.0)
    pair = np.arange(number * classes, dtype=np.int64)
    job, on_class = np.divmod(pair, classes)
    last = np.full(number, number * classes, np.int64)
    rows = np.concatenate([job, np.arange(number), number + job, 2 * number + on_class])
    columns = np.concatenate([pair, last, pair, pair])
    values = np.concatenate([-gain.ravel(), np.ones(number), np.ones(len(pair)), devices[job]])
    limits = np.concatenate([np.zeros(number), np.ones(number), np.array(capacities, float)])
    is_entry = values != 0
    entries: tuple[Numbers, Numbers, Floats] = (rows[is_entry], columns[is_entry], values[is_entry])
    solution = minimise(cost, entries, limits)
    assert solution is not None, "all zeros is feasible, and no fraction is above 1"
    shared: Floats = solution.columns[:-1].reshape(number, classes)
    return shared[kind_of.ravel()]
