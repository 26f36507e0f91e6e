"""Policies whose queue is ordered by a rank: by how far requests have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import plan_preemptions
from hetero_airflow.policies.core.queue_order import by_age
from hetero_airflow.policies.core.request_progress import RequestProgress, waiting_progress
from hetero_airflow.policies.core.reservation import NoPreemption


class RankedPolicy(ListPolicy):
    """The smallest rank first, then the older; tight placement, backfill.

    :param preemption: which leases are taken back, where that is possible; None: none ever
    """

    def __init__(
        self, name: str, rank: Callable[[RequestProgress, Estimates], Rank], preemption: PreemptionRules | None = None
    ) -> None:
        make_room = NoPreemption if preemption is None else plan_preemptions(name, preemption)
        super().__init__(name, by_age, TightFitScorer(), make_room=make_room)
        self._rank = rank

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return super().decide(snapshot, now)
        return self._place(snapshot, self._look(snapshot), _by(self._rank, now), self._may_pass, now)


def _by(rank: Callable[[RequestProgress, Estimates], Rank], now: datetime) -> QueueOrder:
    def order(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        ranked = [
            (rank(waiting_progress(one, now), snapshot.estimates), one.submitted_at, one.id, one) for one in pending
        ]
        ranked.sort(key=lambda entry: entry[:3])
        return [one for *_, one in ranked]

    return order
