"""Shortest remaining time first, by estimate: the run that ends soonest goes first, and takes back running work."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.ranked_policy import RankedPolicy
from hetero_airflow.policies.core.request_progress import RequestProgress, remaining_s, typical_run_s


class Srtf(RankedPolicy):
    """The least remaining time first, then those of unknown length; tight placement.

    Of runs of unknown length, the one goes first that would have the least left if it were of typical length. Only
    runs of known length are taken back, and only for requests that are known to be shorter.

    Schrage 1968 shows that this is optimal for the mean time in the system on one machine with free preemption. Several
    machines, restart costs and jobs of several devices each break that.
    """

    def __init__(self, min_run_s: float | None = None) -> None:
        super().__init__("srtf", _order, PreemptionRules(_rank, min_run_s, is_queue_order=True))


def _order(progress: RequestProgress, estimates: Estimates) -> Rank:
    remaining = remaining_s(progress, estimates)
    if remaining is None:
        return 1.0, abs(typical_run_s(estimates) - progress.total_service_s)
    return 0.0, remaining


def _rank(progress: RequestProgress, estimates: Estimates) -> Rank | None:
    remaining = remaining_s(progress, estimates)
    return None if remaining is None else (remaining,)
