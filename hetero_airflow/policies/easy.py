"""EASY backfill: the first that waits has a reservation by the clock, and others start beside it."""

from __future__ import annotations

from hetero_airflow.matching.scoring import Tight
from hetero_airflow.policies.booking import booking
from hetero_airflow.policies.greedy import Greedy
from hetero_airflow.policies.queue import by_priority


class Easy(Greedy):
    """By priority, then by age; tight placement; who waits first is booked, see `Booking`."""

    def __init__(self) -> None:
        super().__init__("easy", by_priority, Tight(), reserve=booking(1))
