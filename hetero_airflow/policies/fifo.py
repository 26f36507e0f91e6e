"""First come, first served, on the devices that fit tightest."""

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_age


class Fifo(ListPolicy):
    """By age alone; tight placement, backfill."""

    def __init__(self) -> None:
        super().__init__("fifo", by_age, TightFitScorer())
