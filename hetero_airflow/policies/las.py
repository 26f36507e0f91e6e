"""Least attained service: whoever has had the fewest device-seconds goes first, so that no length need be known."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.ranked_policy import RankedPolicy
from hetero_airflow.policies.core.request_progress import RequestProgress

QUANTUM_S = 1800.0
"""For so long who got its devices keeps them: those who are equal take turns, and each turn costs a restart."""


class Las(RankedPolicy):
    """The least devices × time first, what runs gives way to it; tight placement.

    Two-dimensional least attained service without the queues of Tiresias (Gu et al., NSDI 2019, section 3.2; with
    them it is `mlfq`). Time is counted alike on all classes of devices.
    """

    def __init__(self, quantum_s: float = QUANTUM_S) -> None:
        super().__init__("las", _rank, PreemptionRules(_rank, quantum_s, is_queue_order=True, period_s=quantum_s))


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank:
    return (progress.served_s * progress.devices,)
