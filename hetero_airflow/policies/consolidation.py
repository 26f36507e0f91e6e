"""Fills a shared cluster and keeps it fit for large requests, by moving small ones together.

A large request asks for several accelerators of one worker, a small one for at most one. Where a large request fits
nowhere, small ones that run are moved away for it if all of them can go on elsewhere at once. Ours; live
defragmentation is known from Gandiva (Xiao et al., OSDI 2018, section 3.4), which moves jobs by trial.
"""

from __future__ import annotations

from collections.abc import Iterable

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.migration import ReservationsSparingMigrated, is_large, plan_migrations, was_migrated
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.request_mix import rounded_request_mix
from hetero_airflow.policies.core.scored_policy import ScoredPolicy
from hetero_airflow.policies.expected_fill import expected_fill_scoring


class Consolidation(ScoredPolicy[RequestMix]):
    """Placed by expected fill, in the order of `large_first`; small requests are moved for large ones."""

    def __init__(self) -> None:
        name = "consolidation"
        room = plan_migrations(name)
        super().__init__(
            name,
            rounded_request_mix,
            expected_fill_scoring,
            order=large_first,
            reserve=ReservationsSparingMigrated,
            make_room=room,
        )


def large_first(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """The higher class first; in each the large requests, then who was moved, then all others; see `moving`.

    Within these, Airflow's greater weight goes first, then the older. So who is large gets what was freed for it, and
    those who made room for it go on before others take their places. Where nobody can be moved, neither goes first.

    >>> from hetero_airflow.testing import a_pending
    >>> moved = a_pending("moved", at_s=3, attained_service_s={"nvidia/v100": 60.0})
    >>> queue = [a_pending("a"), a_pending("b", "gpu:4", 1), a_pending("c", "gpu:4", 2), moved]
    >>> [one.id for one in large_first(queue, Snapshot(1, can_preempt=True))]
    ['b', 'c', 'moved', 'a']
    """
    queue = by_priority(pending, snapshot)
    if not snapshot.can_preempt:
        return queue
    return sorted(
        queue, key=lambda one: (one.request.priority.rank, 0 if is_large(one) else 1 if was_migrated(one) else 2)
    )
