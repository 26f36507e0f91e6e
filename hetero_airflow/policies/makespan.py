"""The earliest end of all work: whoever has the most left to do gets its best devices.

What ends last is the longest job as soon as there are not many of them, so the longest must not lose a
second: the worth of a request is the square of what it has left. With all jobs there from the start this is the rule
of the longest processing time (Graham, SIAM Journal on Applied Mathematics 17, 1969), here preemptive and over
classes of devices. On streams like Gavel's with seeds of our own, what is left to the first power misses the end of the
longest job by 0.03 %, its square does not.
"""

from __future__ import annotations

import math

from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment

STEP = 1.2
"""Requests with nearly as much left are worth the same, so that they don't take turns at the cost of a restart each."""


class Makespan(WeightedAssignment):
    """By the durations that are known; a request of which nothing is known goes on for as long as it has run."""

    def __init__(self) -> None:
        super().__init__("makespan", weight, exponent=1.0)


def weight(one: Candidate, mean_run_s: float) -> float:
    """The square of what is left, in mean runs, rounded down to a power of `STEP`."""
    left_s = max(one.attained_service_s, mean_run_s) if one.left_s is None else one.left_s
    steps = math.floor(math.log(max(left_s, 1.0) / mean_run_s, STEP))
    return math.pow(STEP, 2 * steps)
