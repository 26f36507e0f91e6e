"""The base of policies that order the queue by a rank, which depends on how far each request has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import plan_preemptions
from hetero_airflow.policies.core.queue_order import by_age
from hetero_airflow.policies.core.request_progress import RequestProgress, waiting_progress
from hetero_airflow.policies.core.reservation import NoPreemption


class RankedPolicy(ListPolicy):
    """The smallest rank first, then the older request; tight placement, backfill.

    :param rules: which leases are taken back, where the engine can; None: no leases
    """

    def __init__(
        self, name: str, rank: Callable[[RequestProgress, Estimates], Rank], rules: PreemptionRules | None = None
    ) -> None:
        preemption = NoPreemption if rules is None else plan_preemptions(name, rules)
        super().__init__(name, by_age, TightFitScorer(), preemption=preemption)
        self._rank = rank

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return super().decide(snapshot, now)

        def order(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
            ranked = [
                (
                    self._rank(waiting_progress(request, now), snapshot.estimates),
                    request.submitted_at,
                    request.id,
                    request,
                )
                for request in pending
            ]
            return [request for *_, request in sorted(ranked, key=lambda entry: entry[:3])]

        return self._schedule(snapshot, self._indexed(snapshot), order, self._may_overtake, now)
