"""Load balancing with migration: whoever can complete earliest runs, where that is, and moves when it changes.

The worth of a request is the part of its remaining work that it does in a second: the shortest remaining time
first, over classes of devices. There is no queue for each device that could grow longer than another's: what waits
waits for all of them, and what runs moves to devices that others leave.
"""

from __future__ import annotations

from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment


class LoadBalance(WeightedAssignment):
    """By the durations that are known; what has run long has long to go where nothing is known."""

    def __init__(self) -> None:
        super().__init__("load_balance", weight, exponent=1.0)


def weight(one: Candidate, mean_run_s: float) -> float:
    """Mean runs by what is left: the more, the sooner it completes."""
    left_s = mean_run_s + one.attained_service_s if one.left_s is None else one.left_s
    return mean_run_s / max(left_s, 1.0)
