"""Fills a shared cluster and keeps it usable for large requests: small requests are moved together.

A large request asks for several accelerators of one worker, a small one for at most one. If a large request fits
nowhere, small running requests are migrated for it, provided that all of them can go on elsewhere at once. The policy
is our own. Live defragmentation is known from Gandiva (Xiao et al., OSDI 2018, section 3.4), which moves jobs by trial.
"""

from collections.abc import Iterable
from functools import partial

from hetero_airflow.matching.scoring import PlacementScorer, TightFitScorer
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.migration import MigrationPlan, ReservationsSparingMigrated, is_large, was_migrated
from hetero_airflow.policies.core.mix_scorer import ScorerByMix, rounded_request_mix
from hetero_airflow.policies.core.queue_order import by_priority


class Consolidation(ListPolicy):
    """Places by the mix of requests to come, in the order of `large_first`; migrates small requests for large ones."""

    def __init__(self) -> None:
        super().__init__(
            "consolidation",
            large_first,
            TightFitScorer(),
            reservations=ReservationsSparingMigrated,
            preemption=partial(MigrationPlan, "consolidation"),
        )
        self._scorer_by_mix = ScorerByMix()

    def _scorer_for(self, snapshot: Snapshot) -> PlacementScorer:
        return self._scorer_by_mix(rounded_request_mix(snapshot))


def large_first(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """The higher class first; in each class the large requests, then migrated ones, then all others.

    Within these, Airflow's greater weight goes first, then the older request. So a large request gets what was freed
    for it, and migrated requests go on before others take their places (see `migration`). Where no request can be
    migrated, the order is `by_priority`.

    >>> from hetero_airflow.testing import a_pending
    >>> migrated = a_pending("migrated", at_s=3, attained_service_s={"nvidia/v100": 60.0})
    >>> queue = [a_pending("a"), a_pending("b", "gpu:4", 1), a_pending("c", "gpu:4", 2), migrated]
    >>> [pending.id for pending in large_first(queue, Snapshot(1, can_preempt=True))]
    ['b', 'c', 'migrated', 'a']
    """

    def key(request: PendingRequest) -> tuple[int, int]:
        return request.request.priority.rank, 0 if is_large(request) else 1 if was_migrated(request) else 2

    queue = by_priority(pending, snapshot)
    return sorted(queue, key=key) if snapshot.can_preempt else queue
