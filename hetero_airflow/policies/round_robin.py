"""Turns: the DAGs take turns, and so do workers and devices."""

from hetero_airflow.matching.scoring import LeastRecentScorer
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.queue_order import by_turn


class RoundRobin(ListPolicy):
    """DAGs in turn, the one that got a device longest ago first; on the worker, then the device, used longest ago.

    While a DAG's request is the head, younger requests of the DAG don't overtake it: they would use up the DAG's turn,
    so that other DAGs could delay the head for ever.
    """

    def __init__(self) -> None:
        super().__init__("round_robin", by_turn, LeastRecentScorer(), may_overtake=_is_of_another_dag)


def _is_of_another_dag(pending: PendingRequest, head: PendingRequest) -> bool:
    return pending.dag_id != head.dag_id
