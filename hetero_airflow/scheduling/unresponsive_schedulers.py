"""Suspends requests that their own scheduler does not start, so that they do not block others.

Every scheduler decides on all requests, and each carries out the decisions on its own. If one of them has died, hangs
or has no free process, its placements would keep devices idle until Airflow gives its tasks to another scheduler. That
takes half a minute or more.
"""

from collections.abc import Set
from dataclasses import replace
from datetime import datetime, timedelta

from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot

START_TIMEOUT = timedelta(seconds=15)
"""How long a scheduler may leave devices idle that are placed for its requests. A healthy one starts them at its next
heartbeat, every few seconds."""

SUSPENSION = timedelta(seconds=60)
"""How long a request stays suspended before it is decided again. It may belong to another scheduler by then; and if
several schedulers have members of a gang, the one that would place all of them may have suspended it too."""


class UnresponsiveSchedulers:
    """Remembers since when requests of other schedulers are placed and not started."""

    def __init__(self) -> None:
        self._placed_since: dict[str, datetime] = {}
        """Request id → since when every plan places it."""
        self._suspended_until: dict[str, datetime] = {}
        self._last: tuple[tuple[PendingRequest, ...], frozenset[str], tuple[PendingRequest, ...]] | None = None
        """Pending requests, ids of the suspended ones, and the rest: the same answer is the same object."""

    def without_suspended(self, snapshot: Snapshot, owned_ids: Set[str], now: datetime) -> Snapshot:
        """The snapshot without the suspended requests; a request that this scheduler took over is not suspended."""
        if not self._suspended_until:
            return snapshot
        foreign = {request.id for request in snapshot.pending if request.id not in owned_ids}
        self._suspended_until = {
            id_: until
            for id_, until in self._suspended_until.items()
            if id_ in foreign and now < until <= now + SUSPENSION
        }
        suspended = frozenset(self._suspended_until)
        if self._last is None or self._last[0] is not snapshot.pending or self._last[1] != suspended:
            gangs = {request.gang for request in snapshot.pending if request.gang and request.id in suspended}
            remaining = (
                request for request in snapshot.pending if request.id not in suspended and request.gang not in gangs
            )
            self._last = (snapshot.pending, suspended, tuple(remaining))
        return replace(snapshot, pending=self._last[2]) if suspended else snapshot

    def observe(self, plan: Plan, owned_ids: Set[str], now: datetime) -> Plan:
        """Note which requests others could start now; the plan, which holds until the first of them times out."""
        placed = (place.request_id for place in plan.places if place.request_id not in owned_ids)
        self._placed_since = {id_: min(now, self._placed_since.get(id_, now)) for id_ in placed}
        self._suspended_until |= {
            id_: now + SUSPENSION for id_, since in self._placed_since.items() if now - since >= START_TIMEOUT
        }
        ends = [since + START_TIMEOUT for since in self._placed_since.values()]
        ends += [*self._suspended_until.values(), *([plan.until] if plan.until else [])]
        return replace(plan, until=min(ends)) if ends else plan
