"""Max-min fairness over classes of devices: Gavel's policy of that name, its heterogeneity-aware LAS."""

from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.class_assignment.rounds import RoundPolicy
from hetero_airflow.policies.core.linear_program import Floats


class MaxMinFairness(RoundPolicy):
    """Maximises the least of all jobs' mean speeds, each divided by its speed with an equal share of each class."""

    def __init__(self) -> None:
        super().__init__("max_min_fairness", equal_share)


def equal_share(candidate: Candidate, speeds: Floats, problem: AssignmentProblem) -> float:
    """The job's speed if it spent its time on all devices alike, divided by the devices that it takes."""
    devices = [problem.capacities[name] for name in sorted(problem.capacities)]
    total = sum(devices)
    mean = sum(s * n for s, n in zip(speeds.tolist(), devices, strict=True)) / total if total else 0.0
    return max(mean, 1e-9) / candidate.count
