"""The earliest end of all work as a linear program: Gavel's makespan policy. A baseline for `makespan`."""

from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.class_assignment.rounds import RoundPolicy
from hetero_airflow.policies.core.linear_program import Floats


class MakespanLp(RoundPolicy):
    """Maximises the least of all jobs' mean speeds, each divided by its remaining work, so that all end together."""

    def __init__(self) -> None:
        super().__init__("makespan_lp", remaining_work)


def remaining_work(candidate: Candidate, speeds: Floats, problem: AssignmentProblem) -> float:
    """In mean runs; if unknown, a mean run, or as much as was done."""
    done_s = max(candidate.done_s, problem.mean_run_s)
    return max(done_s if candidate.left_s is None else candidate.left_s, 1.0) / problem.mean_run_s
