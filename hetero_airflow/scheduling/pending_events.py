"""Submitted and withdrawn requests that a cycle decides on before the store has recorded them with the plan."""

from collections.abc import Sequence
from dataclasses import replace

from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn

RequestEvent = RequestSubmitted | RequestWithdrawn


def with_pending_events(snapshot: Snapshot, events: Sequence[RequestEvent]) -> Snapshot:
    """The snapshot as it will be once the store has recorded the events, in their order."""
    if not events:
        return snapshot
    pending_ids, withdrawn = {pending.id for pending in snapshot.pending}, set()
    submitted: dict[str, PendingRequest] = {}
    for event in events:
        id_ = event.request_id
        if isinstance(event, RequestWithdrawn):
            withdrawn.add(id_)
            submitted.pop(id_, None)
        elif id_ not in snapshot.holders and (id_ not in pending_ids or id_ in withdrawn):
            submitted.setdefault(id_, event.pending)
    queue = [pending for pending in snapshot.pending if pending.id not in withdrawn]
    added = sorted(submitted.values(), key=PendingRequest.order)
    is_sorted = not queue or not added or queue[-1].order() <= added[0].order()
    queue += added
    return replace(snapshot, pending=tuple(queue if is_sorted else sorted(queue, key=PendingRequest.order)))
