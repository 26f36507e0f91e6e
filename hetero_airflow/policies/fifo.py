"""First come, first served, on the device that fits tightest."""

from __future__ import annotations

from hetero_airflow.matching.scoring import Tight
from hetero_airflow.policies.greedy import Greedy
from hetero_airflow.policies.queue import by_age


class Fifo(Greedy):
    """Age alone; tight placement, backfill."""

    def __init__(self) -> None:
        super().__init__("fifo", by_age, Tight())
