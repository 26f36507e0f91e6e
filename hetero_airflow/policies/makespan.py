"""The earliest end of all work: the request with the most remaining work gets its best devices.

As soon as few jobs are left, the longest job ends last. So the longest job must not lose a second: the weight of a
request is the square of its remaining work. If all jobs are there from the start, this is the rule of the longest
processing time (Graham, SIAM Journal on Applied Mathematics 17, 1969), here preemptive and over classes of devices. On
streams like Gavel's with seeds of our own, the first power of the remaining work misses the end of the longest job by
0.03 %, its square does not.
"""

import math

from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment

STEP = 1.2
"""Requests with nearly equal remaining work weigh the same; otherwise they would take turns, each with a restart."""


class Makespan(WeightedAssignment):
    """By known durations; an unknown run is expected to go on for as long as it has run."""

    def __init__(self) -> None:
        super().__init__("makespan", weight, exponent=1.0)


def weight(candidate: Candidate, mean_run_s: float) -> float:
    """The square of the remaining work, in mean runs, rounded down to a power of `STEP`."""
    left_s = max(candidate.done_s, mean_run_s) if candidate.left_s is None else candidate.left_s
    steps = math.floor(math.log(max(left_s, 1.0) / mean_run_s, STEP))
    return math.pow(STEP, 2 * steps)
