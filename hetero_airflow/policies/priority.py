"""The most urgent request first, on the devices that fit tightest."""

from __future__ import annotations

from functools import partial

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.request_progress import RequestProgress


class PriorityPolicy(ListPolicy):
    """By priority class, then Airflow's priority weight, then age; tight placement.

    Where the engine can take leases back, those of lower classes are taken back for higher ones.
    """

    def __init__(self) -> None:
        preemption = partial(LeastLossPreemption, "priority", PreemptionRules(_rank, is_priority_class=True))
        super().__init__("priority", by_priority, TightFitScorer(), preemption=preemption)


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank:
    return (float(progress.pending.request.priority.rank),)
