"""Conservative backfill: the first waiting requests have reservations by time, each beside those before it."""

from __future__ import annotations

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.policies.core.backfill import reserve_by_time
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_priority

MAX_RESERVATIONS = 32
"""Later requests get no reservation. They may still start beside the reservations of others."""


class Conservative(ListPolicy):
    """By priority, then by age; tight placement; see `TimedReservations`."""

    def __init__(self) -> None:
        reservations = reserve_by_time(MAX_RESERVATIONS)
        super().__init__("conservative", by_priority, TightFitScorer(), reservations=reservations)
