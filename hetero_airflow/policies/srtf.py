"""Shortest remaining time first, by estimate: whoever is done soonest goes first, and what runs gives way to it."""

from __future__ import annotations

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.preemption import Preemption, Rank
from hetero_airflow.policies.progress import Progress, remaining_s, typical_s
from hetero_airflow.policies.ranked import Ranked


class Srtf(Ranked):
    """The least remaining time first, then those of which no length is known; tight placement.

    Of unknown length, the run goes first of which a run of typical length would have least left. Taken back are
    only runs of known length, and only for requests that are known to be shorter.

    Schrage 1968 shows that it is optimal for the mean time in the system on one machine with free
    preemption. Several machines, restart costs and jobs of several devices each break that.
    """

    def __init__(self, min_run_s: float | None = None) -> None:
        super().__init__("srtf", _order, Preemption(_rank, min_run_s, is_order=True))


def _order(progress: Progress, estimates: Estimates) -> Rank:
    remaining = remaining_s(progress, estimates)
    if remaining is None:
        return 1.0, abs(typical_s(estimates) - progress.served_s)
    return 0.0, remaining


def _rank(progress: Progress, estimates: Estimates) -> Rank | None:
    remaining = remaining_s(progress, estimates)
    return None if remaining is None else (remaining,)
