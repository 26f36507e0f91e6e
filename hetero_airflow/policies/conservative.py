"""Conservative backfill: those who wait have reservations by the clock, one beside the other."""

from __future__ import annotations

from hetero_airflow.matching.scoring import Tight
from hetero_airflow.policies.booking import booking
from hetero_airflow.policies.greedy import Greedy
from hetero_airflow.policies.queue import by_priority

MAX_BOOKED = 32
"""For more than these, later ones may be placed beside what is booked, but are not booked themselves."""


class Conservative(Greedy):
    """By priority, then by age; tight placement; the first that wait are booked, see `Booking`."""

    def __init__(self) -> None:
        super().__init__("conservative", by_priority, Tight(), reserve=booking(MAX_BOOKED))
