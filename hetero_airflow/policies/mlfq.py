"""Multilevel feedback queues: new work goes first, work with much service later, and starving work first again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.snapshot import MIN_RUN_S
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.ranked_policy import RankedPolicy
from hetero_airflow.policies.core.request_progress import RequestProgress

THRESHOLDS_DEVICE_S = (3.25 * 3600,)
"""The service at which a run falls into the next queue: two queues, parted at 3.25 device-hours."""

STARVE_LIMIT = 8.0
"""A run that has waited this many times as long as it was served returns to the first queue."""


class Mlfq(RankedPolicy):
    """By queue, then by age; work is taken back only for work of earlier queues; tight placement.

    Discretised two-dimensional least attained service (Tiresias, Gu et al., NSDI 2019, section 3.2) with its promotion
    of starving jobs. Deviations: within a queue, age counts from the submission; the queue is computed each time from
    all service and waiting, so a promotion ends once enough was served.
    """

    def __init__(
        self, thresholds_device_s: Sequence[float] = THRESHOLDS_DEVICE_S, starve_limit: float = STARVE_LIMIT
    ) -> None:
        rank = _queue_of(thresholds_device_s, starve_limit)
        super().__init__("mlfq", rank, PreemptionRules(rank, period_s=MIN_RUN_S))


def _queue_of(
    thresholds_device_s: Sequence[float], starve_limit: float
) -> Callable[[RequestProgress, Estimates], Rank]:
    def rank(progress: RequestProgress, estimates: Estimates) -> Rank:
        if progress.waited_s >= starve_limit * progress.total_service_s:
            return (0.0,)
        service = progress.total_service_s * progress.devices
        return (float(sum(service >= threshold for threshold in thresholds_device_s)),)

    return rank
