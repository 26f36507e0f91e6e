"""The default: the most urgent first, on the device that fits tightest."""

from __future__ import annotations

from hetero_airflow.matching.scoring import Tight
from hetero_airflow.policies.greedy import Greedy
from hetero_airflow.policies.queue import by_priority


class Priority(Greedy):
    """Class of the request, then Airflow's priority weight, then age; tight placement, backfill."""

    def __init__(self) -> None:
        super().__init__("priority", by_priority, Tight())
