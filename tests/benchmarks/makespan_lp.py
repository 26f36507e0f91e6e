"""The earliest end of all work as a linear program: Gavel's makespan policy."""

from __future__ import annotations

from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.class_assignment.rounds import RoundPolicy
from hetero_airflow.policies.core.linear_program import Floats


class MakespanLp(RoundPolicy):
    """Each job's mean speed by what it has left: the least of all as great as can be, so that all end together."""

    def __init__(self) -> None:
        super().__init__("makespan_lp", left)


def left(one: Candidate, speeds: Floats, found: AssignmentProblem) -> float:
    """Work that is left, in mean runs; where nothing is known of it, a mean run, or as much as was done."""
    left_s = max(one.attained_service_s, found.mean_run_s) if one.left_s is None else one.left_s
    return max(left_s, 1.0) / found.mean_run_s
