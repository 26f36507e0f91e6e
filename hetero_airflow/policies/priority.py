"""The default: the most urgent first, on the device that fits tightest."""

from __future__ import annotations

from hetero_airflow.matching.scoring import Tight
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.policies.greedy import Greedy
from hetero_airflow.policies.preemption import Preemption, Rank
from hetero_airflow.policies.progress import Progress
from hetero_airflow.policies.queue import by_priority
from hetero_airflow.policies.room import room_by


class Priority(Greedy):
    """Class of the request, then Airflow's priority weight, then age; tight placement.

    Where the engine can take leases back, lower classes give way to higher ones.
    """

    def __init__(self) -> None:
        super().__init__(
            "priority", by_priority, Tight(), make_room=room_by("priority", Preemption(_rank, is_class=True))
        )


def _rank(progress: Progress, estimates: Estimates) -> Rank:
    return (float(progress.pending.request.priority.rank),)
