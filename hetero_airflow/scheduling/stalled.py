"""Requests whose own scheduler does not start them though it could: they hold up no others.

Every scheduler decides on all requests, and each carries out its own part. What one of them has that died, hangs or
has no free process would keep its devices idle until Airflow hands its tasks to another, which takes half a minute
and more.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from datetime import datetime, timedelta

from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Pending, Snapshot

PATIENCE = timedelta(seconds=15)
"""How long a scheduler may leave devices idle that are for its requests. One that lives starts them at its next
heartbeat, every few seconds."""


class Stalled:
    """Remembers since when requests of other schedulers could have been started."""

    def __init__(self) -> None:
        self._placed: dict[str, datetime] = {}
        """Request id → since when it is placed in every plan."""
        self._left_out: set[str] = set()
        self._last: tuple[tuple[Pending, ...], frozenset[str], tuple[Pending, ...]] | None = None

    def without(self, snapshot: Snapshot, ours: Set[str]) -> Snapshot:
        """The snapshot without the requests that are left out, until they wait no longer or are ours."""
        if not self._left_out:
            return snapshot
        self._left_out &= {one.id for one in snapshot.pending if one.id not in ours}
        left_out = frozenset(self._left_out)
        if self._last is None or self._last[0] is not snapshot.pending or self._last[1] != left_out:
            gangs = {one.gang for one in snapshot.pending if one.gang and one.id in left_out}
            rest = (one for one in snapshot.pending if one.id not in left_out and one.gang not in gangs)
            self._last = (snapshot.pending, left_out, tuple(rest))
        return replace(snapshot, pending=self._last[2]) if left_out else snapshot

    def note(self, plan: Plan, ours: Set[str], now: datetime) -> Plan:
        """Take note of what others could start now; the plan, which holds until one of them has had its time."""
        placed = (place.request_id for place in plan.places if place.request_id not in ours)
        self._placed = {one: min(now, self._placed.get(one, now)) for one in placed}
        late = {one for one, since in self._placed.items() if now - since >= PATIENCE}
        self._left_out |= late
        ends = [since + PATIENCE for since in self._placed.values()]
        return replace(plan, until=min([*ends, *([plan.until] if plan.until else [])])) if ends else plan
