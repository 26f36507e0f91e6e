"""Least attained service: the request that has had the fewest device-seconds goes first; lengths need not be known."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.ranked_policy import RankedPolicy
from hetero_airflow.policies.core.request_progress import RequestProgress

QUANTUM_S = 1800.0
"""A request keeps its devices for at least this time: equal requests take turns, and each turn costs a restart."""


class Las(RankedPolicy):
    """The least devices × time first, and running work is taken back for it; tight placement.

    Two-dimensional least attained service without the queues of Tiresias (Gu et al., NSDI 2019, section 3.2), which
    `mlfq` has. Time counts alike on all classes of devices.
    """

    def __init__(self, quantum_s: float = QUANTUM_S) -> None:
        super().__init__("las", _rank, PreemptionRules(_rank, quantum_s, is_queue_order=True, period_s=quantum_s))


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank:
    return (progress.total_service_s * progress.devices,)
