"""The most urgent request first, on the devices that fit tightest."""

from functools import partial

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption_plan import CLASS_RULES, LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_priority


class PriorityPolicy(ListPolicy):
    """By priority class, then Airflow's priority weight, then age; tight placement.

    Where the engine can take leases back, those of lower classes are taken back for higher ones.
    """

    def __init__(self) -> None:
        preemption = partial(LeastLossPreemption, "priority", CLASS_RULES)
        super().__init__("priority", by_priority, TightFitScorer(), preemption=preemption)
