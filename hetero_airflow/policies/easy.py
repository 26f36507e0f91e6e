"""EASY backfill: the first that waits has a reservation by the clock, and others start beside it."""

from __future__ import annotations

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.policies.core.backfill import reserve_by_time
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_priority


class Easy(ListPolicy):
    """By priority, then by age; tight placement; who waits first is booked, see `TimedReservations`."""

    def __init__(self) -> None:
        super().__init__("easy", by_priority, TightFitScorer(), reserve=reserve_by_time(1))
