"""Finds the cheapest change of a request with which it would start now. Pure.

It tries single changes in the order of their costs: the policy decides on the whole queue with the changed request,
until it places it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.scheduling.advice.changes import Change, possible_changes

MAX_TRIED = 50
"""The policy decides on the cheapest changes only, at most on this number of them."""


@dataclass(frozen=True, slots=True)
class CheapestChange:
    """A change with which the policy places the request now, and the placement."""

    change: Change
    place: Place


def cheapest_change(
    snapshot: Snapshot, pending: PendingRequest, decide: Callable[[Snapshot, datetime], Plan], now: datetime
) -> CheapestChange | None:
    """The cheapest change with which the request would be placed now; None if no single one does.

    The change applies to the members of its gang with an equal request too.

    :param pending: a request of the snapshot, or one that was refused and is not in it any more
    """
    for change in possible_changes(snapshot, pending)[:MAX_TRIED]:
        plan = decide(_changed_snapshot(snapshot, pending, change.request), now)
        place = next((place for place in plan.places if place.request_id == pending.id), None)
        if place is not None:
            return CheapestChange(change, place)
    return None


def _changed_snapshot(snapshot: Snapshot, pending: PendingRequest, request: DeviceRequest) -> Snapshot:
    def changed(queued: PendingRequest) -> PendingRequest:
        is_like = bool(pending.gang) and queued.gang == pending.gang and queued.request == pending.request
        return replace(queued, request=request) if queued.id == pending.id or is_like else queued

    queue = list(snapshot.pending)
    if all(queued.id != pending.id for queued in queue):
        queue = sorted([*queue, pending], key=lambda queued: (queued.submitted_at, queued.id))
    return replace(snapshot, pending=tuple(map(changed, queue)))
