"""Conservative backfill: those who wait have reservations by the clock, one beside the other."""

from __future__ import annotations

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.policies.core.backfill import reserve_by_time
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_priority

MAX_BOOKED = 32
"""For more than these, later ones may be placed beside what is booked, but are not booked themselves."""


class Conservative(ListPolicy):
    """By priority, then by age; tight placement; the first that wait are booked, see `TimedReservations`."""

    def __init__(self) -> None:
        super().__init__("conservative", by_priority, TightFitScorer(), reserve=reserve_by_time(MAX_BOOKED))
