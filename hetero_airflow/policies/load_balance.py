"""Load balancing with migration: the request that can complete earliest runs where it completes earliest.

The weight of a request is the part of its remaining work that it does in a second: shortest remaining time first, over
classes of devices. Devices have no queues that could differ in length: a waiting request waits for all devices, and a
running one moves to devices that others leave.
"""

from __future__ import annotations

from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment


class LoadBalance(WeightedAssignment):
    """By known durations; an unknown run that has run long is expected to run long."""

    def __init__(self) -> None:
        super().__init__("load_balance", weight, exponent=1.0)


def weight(candidate: Candidate, mean_run_s: float) -> float:
    """A mean run divided by the remaining time: the greater, the sooner it completes."""
    left_s = mean_run_s + candidate.done_s if candidate.left_s is None else candidate.left_s
    return mean_run_s / max(left_s, 1.0)
