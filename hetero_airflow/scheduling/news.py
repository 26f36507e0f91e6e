"""Requests that come and go, seen by a cycle before the store is told of them together with the cycle's plan."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

from hetero_airflow.model.snapshot import Pending, Snapshot
from hetero_airflow.store.store import Submitted, Withdrawn

RequestNews = Submitted | Withdrawn


def with_news(snapshot: Snapshot, news: Sequence[RequestNews]) -> Snapshot:
    """The snapshot as it is once the store has taken note of them, in order."""
    if not news:
        return snapshot
    queue = list(snapshot.pending)
    ids = {pending.id for pending in queue}
    for event in news:
        if isinstance(event, Withdrawn):
            if event.request_id in ids:
                ids.discard(event.request_id)
                queue = [pending for pending in queue if pending.id != event.request_id]
        elif event.pending.id not in ids and event.pending.id not in snapshot.holders:
            ids.add(event.pending.id)
            insort(queue, event.pending, key=Pending.order)
    return replace(snapshot, pending=tuple(queue))
