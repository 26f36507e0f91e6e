"""EASY backfill: the head of the queue has a reservation by time, and others start where they don't delay it."""

from __future__ import annotations

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.policies.core.backfill import reserve_by_time
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_priority


class Easy(ListPolicy):
    """By priority, then by age; tight placement; see `TimedReservations`."""

    def __init__(self) -> None:
        super().__init__("easy", by_priority, TightFitScorer(), reservations=reserve_by_time(1))
