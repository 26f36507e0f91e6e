"""Shortest remaining service first, by estimate: the fewest remaining device-seconds go first."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.ranked_policy import RankedPolicy
from hetero_airflow.policies.core.request_progress import RequestProgress, remaining_s, typical_run_s


class Srsf(RankedPolicy):
    """The least remaining time × devices first, then those of unknown length; tight placement.

    Unknown lengths and preemption are as in `srtf`. Tiresias (NSDI 2019, section 3.1) and Muri (SIGCOMM 2022,
    section 6) compare with this rule where lengths are known: SRTF lets a short job on many devices go before many
    small ones.
    """

    def __init__(self, min_run_s: float | None = None) -> None:
        super().__init__("srsf", _order, PreemptionRules(_rank, min_run_s, is_queue_order=True))


def _order(progress: RequestProgress, estimates: Estimates) -> Rank:
    remaining = remaining_s(progress, estimates)
    if remaining is None:
        return 1.0, abs(typical_run_s(estimates) - progress.total_service_s) * progress.devices
    return 0.0, remaining * progress.devices


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank | None:
    remaining = remaining_s(progress, estimates)
    return None if remaining is None else (remaining * progress.devices,)
