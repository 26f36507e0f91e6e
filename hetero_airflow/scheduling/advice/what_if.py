"""The cheapest change of a request with which it would start now. Pure.

Found by trying: one change after another, in the order of their costs, is put in the place of the
request, and the policy decides on the whole queue again; the first with which it is placed is the answer.
Only single changes are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.scheduling.advice.changes import Change, possible_changes

MAX_TRIED = 50
"""Changes on which the policy decides; the cheapest ones."""


@dataclass(frozen=True, slots=True)
class CheapestChange:
    """A change with which the policy places the request now, and where."""

    change: Change
    place: Place


def cheapest_change(
    snapshot: Snapshot, pending: PendingRequest, decide: Callable[[Snapshot, datetime], Plan], now: datetime
) -> CheapestChange | None:
    """The cheapest change with which the request would be placed now; None if no single one does.

    Members of its gang that ask for the same are changed with it.

    :param pending: of the snapshot, or one that was refused and has left it
    """
    for change in possible_changes(snapshot, pending)[:MAX_TRIED]:
        plan = decide(_changed_snapshot(snapshot, pending, change.request), now)
        place = next((place for place in plan.places if place.request_id == pending.id), None)
        if place is not None:
            return CheapestChange(change, place)
    return None


def _changed_snapshot(snapshot: Snapshot, pending: PendingRequest, request: DeviceRequest) -> Snapshot:
    def is_meant(one: PendingRequest) -> bool:
        return one.id == pending.id or bool(
            pending.gang and one.gang == pending.gang and one.request == pending.request
        )

    present = snapshot.pending
    if all(one.id != pending.id for one in present):
        present = tuple(sorted((*present, pending), key=lambda one: (one.submitted_at, one.id)))
    changed = (replace(one, request=request) if is_meant(one) else one for one in present)
    return replace(snapshot, pending=tuple(changed))
