"""Requests that come and go, seen by a cycle before the store is told of them together with the cycle's plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn

RequestEvent = RequestSubmitted | RequestWithdrawn


def with_pending_events(snapshot: Snapshot, news: Sequence[RequestEvent]) -> Snapshot:
    """The snapshot as it is once the store has taken note of them, in order."""
    if not news:
        return snapshot
    known, gone = {pending.id for pending in snapshot.pending}, set()
    fresh: dict[str, PendingRequest] = {}
    for event in news:
        if isinstance(event, RequestWithdrawn):
            gone.add(event.request_id)
            fresh.pop(event.request_id, None)
        elif event.request_id not in snapshot.holders and (event.request_id not in known or event.request_id in gone):
            fresh.setdefault(event.request_id, event.pending)
    queue = [pending for pending in snapshot.pending if pending.id not in gone]
    late = sorted(fresh.values(), key=PendingRequest.order)
    is_last = not queue or not late or queue[-1].order() <= late[0].order()
    queue += late
    return replace(snapshot, pending=tuple(queue if is_last else sorted(queue, key=PendingRequest.order)))
