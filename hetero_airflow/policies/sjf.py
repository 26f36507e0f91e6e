"""Shortest job first, by estimate; nothing is taken back."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.preemption import Rank
from hetero_airflow.policies.progress import Progress, length_s
from hetero_airflow.policies.ranked import Ranked


class Sjf(Ranked):
    """The shortest first, then those of which no length is known, by age; tight placement, backfill."""

    def __init__(self) -> None:
        super().__init__("sjf", _rank)


def _rank(progress: Progress, estimates: Estimates) -> Rank:
    length = length_s(progress, estimates)
    return (1.0, 0.0) if length is None else (0.0, length)
