"""The earliest end of all work as a linear program: Gavel's makespan policy."""

from __future__ import annotations

from hetero_airflow.policies.contenders import Contender, Contest
from hetero_airflow.policies.linear_program import Floats
from hetero_airflow.policies.rounds import Rounds


class MakespanLp(Rounds):
    """Each job's mean speed by what it has left: the least of all as great as can be, so that all end together."""

    def __init__(self) -> None:
        super().__init__("makespan_lp", left)


def left(one: Contender, speeds: Floats, found: Contest) -> float:
    """Work that is left, in mean runs; where nothing is known of it, a mean run, or as much as was done."""
    left_s = max(one.attained_s, found.mean_run_s) if one.left_s is None else one.left_s
    return max(left_s, 1.0) / found.mean_run_s
