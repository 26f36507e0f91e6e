"""Max-min fairness that knows the classes of devices: Gavel's policy of that name, its heterogeneity-aware LAS."""

from __future__ import annotations

from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.class_assignment.rounds import RoundPolicy
from hetero_airflow.policies.core.linear_program import Floats


class MaxMinFairness(RoundPolicy):
    """Each job's mean speed by what an equal share of each class would give it; the least of all as great as can be."""

    def __init__(self) -> None:
        super().__init__("max_min_fairness", equal_share)


def equal_share(one: Candidate, speeds: Floats, found: AssignmentProblem) -> float:
    """The job's speed if it spent its time on all devices alike, by the devices that it takes."""
    devices = [found.capacities[name] for name in sorted(found.capacities)]
    total = sum(devices)
    mean = sum(s * n for s, n in zip(speeds.tolist(), devices, strict=True)) / total if total else 0.0
    return max(mean, 1e-9) / one.count
