"""Shortest job first, by estimate; nothing is preempted."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.core.preemption import Rank
from hetero_airflow.policies.core.ranked_policy import RankedPolicy
from hetero_airflow.policies.core.request_progress import RequestProgress, length_s


class Sjf(RankedPolicy):
    """The shortest first, then those of unknown length by age; tight placement, backfill."""

    def __init__(self) -> None:
        super().__init__("sjf", _rank)


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank:
    length = length_s(progress, estimates)
    return (1.0, 0.0) if length is None else (0.0, length)
