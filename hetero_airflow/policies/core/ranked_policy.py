"""The base of policies that order the queue by a rank, which depends on how far each request has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_age
from hetero_airflow.policies.core.request_progress import RequestProgress, waiting_progress


class RankedPolicy(ListPolicy):
    """The smallest rank first, then the older request; tight placement, backfill.

    :param rules: which leases are taken back, where the engine can; None: no leases
    """

    def __init__(
        self, name: str, rank: Callable[[RequestProgress, Estimates], Rank], rules: PreemptionRules | None = None
    ) -> None:
        preemption = None if rules is None else partial(LeastLossPreemption, name, rules)
        super().__init__(name, by_age, TightFitScorer(), preemption=preemption)
        self._rank = rank

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        def order(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
            estimates = snapshot.estimates
            ranks = {request.id: self._rank(waiting_progress(request, now), estimates) for request in pending}
            return sorted(pending, key=lambda request: (ranks[request.id], request.submitted_at, request.id))

        return self._schedule(snapshot, index, order, self._may_overtake, now)
