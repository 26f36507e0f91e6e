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
from hetero_airflow.model.snapshot import PendingRequest, Snapshot

START_TIMEOUT = timedelta(seconds=15)
"""How long a scheduler may leave devices idle that are for its requests. One that lives starts them at its next
heartbeat, every few seconds."""

SUSPENSION = timedelta(seconds=60)
"""How long such a request is left out before it gets another chance: it may be with another scheduler by now, and
of a gang whose members are with several, the one that would place all may leave it out too."""


class UnresponsiveSchedulers:
    """Remembers since when requests of other schedulers could have been started."""

    def __init__(self) -> None:
        self._placed: dict[str, datetime] = {}
        """Request id → since when it is placed in every plan."""
        self._left_out: dict[str, datetime] = {}
        """Request id → until when."""
        self._last: tuple[tuple[PendingRequest, ...], frozenset[str], tuple[PendingRequest, ...]] | None = None

    def without(self, snapshot: Snapshot, ours: Set[str], now: datetime) -> Snapshot:
        """The snapshot without the requests that are left out, for their time or until they are ours."""
        if not self._left_out:
            return snapshot
        foreign = {one.id for one in snapshot.pending if one.id not in ours}
        times = self._left_out.items()
        self._left_out = {one: until for one, until in times if one in foreign and now < until <= now + SUSPENSION}
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
        self._left_out |= {one: now + SUSPENSION for one, since in self._placed.items() if now - since >= START_TIMEOUT}
        ends = [*(since + START_TIMEOUT for since in self._placed.values()), *self._left_out.values()]
        return replace(plan, until=min([*ends, *([plan.until] if plan.until else [])])) if ends else plan
