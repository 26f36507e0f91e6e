"""The store as a scheduler sees it: one look a heartbeat, and one after each of its own writes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hetero_airflow.errors import StoreError
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import CommitResult, LeaseMove, StoreEvent


class CachedSnapshotStore(SqlStore):
    """Gives the same snapshot until it is told to look anew or writes itself.

    Each look is a transaction, even where nothing has changed. Much of a heartbeat asks for the present state, some of
    it for every task; what other schedulers write in the meantime is news for the next heartbeat, and no commit relies
    on it.
    """

    _last: Snapshot | None = None

    def invalidate(self) -> None:
        """Let the next `snapshot` read the tables."""
        self._last = None

    def snapshot(self) -> Snapshot:
        """The present state, as it was at the last look or own write."""
        if self._last is None:
            self._last = super().snapshot()
        return self._last

    def record(self, events: Sequence[StoreEvent], now: datetime) -> None:
        """Take note of what happened, in order."""
        if events:
            self.invalidate()
            super().record(events, now)

    def commit(self, plan: Plan, now: datetime, expires_at: datetime, news: Sequence[StoreEvent] = ()) -> CommitResult:
        """Grant the placements of a plan and keep every decision's account; writes nothing where nothing is new."""
        self.invalidate()
        return super().commit(plan, now, expires_at, news)

    def renew(self, holds: Sequence[tuple[str, int]], expires_at: datetime) -> frozenset[str]:
        """Extend the leases given as (lease id, token); the ids that are not held with that token any more."""
        if holds:
            self.invalidate()
        return super().renew(holds, expires_at)

    def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
        """Change the states of leases, in one transaction; the outcome of each move, in order; see the port."""
        if moves:
            self.invalidate()
        return super().move(moves, now)
