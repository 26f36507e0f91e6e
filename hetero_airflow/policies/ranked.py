"""Policies whose queue is ordered by a rank: by how far requests have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.matching.scoring import Tight
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Pending, Snapshot
from hetero_airflow.policies.greedy import Greedy, Order
from hetero_airflow.policies.preemption import Preemption, Rank
from hetero_airflow.policies.progress import Progress, waiting
from hetero_airflow.policies.queue import by_age
from hetero_airflow.policies.reservation import MakeNoRoom
from hetero_airflow.policies.room import room_by


class Ranked(Greedy):
    """The smallest rank first, then the older; tight placement, backfill.

    :param preemption: which leases are taken back, where that is possible; None: none ever
    """

    def __init__(
        self, name: str, rank: Callable[[Progress, Estimates], Rank], preemption: Preemption | None = None
    ) -> None:
        make_room = MakeNoRoom if preemption is None else room_by(name, preemption)
        super().__init__(name, by_age, Tight(), make_room=make_room)
        self._rank = rank

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return super().decide(snapshot, now)
        return self._place(snapshot, self._look(snapshot), _by(self._rank, now), self._may_pass, now)


def _by(rank: Callable[[Progress, Estimates], Rank], now: datetime) -> Order:
    def order(pending: Iterable[Pending], snapshot: Snapshot) -> list[Pending]:
        ranked = [(rank(waiting(one, now), snapshot.estimates), one.submitted_at, one.id, one) for one in pending]
        ranked.sort(key=lambda entry: entry[:3])
        return [one for *_, one in ranked]

    return order
