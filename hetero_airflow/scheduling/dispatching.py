"""Carries out a committed plan: starts what was granted, preempts, and requeues what the engine did not take."""

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from hetero_airflow.engines.engine import Engine, Preemptor
from hetero_airflow.errors import StoreError
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Preempt
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.store.store import CommitResult, LeaseMove, RequestSubmitted, Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undispatched:
    """A lease that was granted and not dispatched. It is released, and its request waits again."""

    lease: Lease
    cause: str


class LeaseDispatch:
    """Hands leases to one engine. It keeps what could not be dispatched until the store has it again."""

    def __init__(self, store: Store, engine: Engine, preemptor: Preemptor | None) -> None:
        self._store = store
        self._engine = engine
        self._preemptor = preemptor
        self._undispatched: list[tuple[Undispatched, PendingRequest]] = []

    def start(self, commit: CommitResult, snapshot: Snapshot, owned_ids: Set[str]) -> list[Lease]:
        """Dispatch the granted leases of this scheduler's requests; those that were dispatched.

        A gang is placed by one scheduler, and each scheduler dispatches its own members. A gang that was granted in
        part is not dispatched at all.
        """
        if not commit.leases:
            return []
        pending = {request.id: request for request in snapshot.pending}
        partial = _partially_granted_gangs(commit, pending)
        dispatched: list[Lease] = []
        undispatched: list[Undispatched] = []
        for lease in commit.leases:
            if pending[lease.request_id].gang in partial:
                undispatched.append(Undispatched(lease, "not dispatched: others took a device of its gang meanwhile"))
            elif lease.request_id in owned_ids:
                try:
                    self._engine.dispatch(lease)
                    dispatched.append(lease)
                except Exception as error:  # noqa: BLE001  engines are foreign code; one task must not stop the others
                    cause = f"not dispatched: {type(error).__name__}: {error}"
                    log.warning("Lease %s is released and its request waits again, %s", lease.id, cause)
                    undispatched.append(Undispatched(lease, cause))
        self._undispatched += ((failed, pending[failed.lease.request_id]) for failed in undispatched)
        return dispatched

    def preempt(self, preemptions: Iterable[Preempt], now: datetime) -> None:
        """Tell the holders of this scheduler's leases to save and end."""
        preemptor = self._preemptor
        if preemptor is None:
            return
        owned = [preempt for preempt in preemptions if self._engine.is_ours(preempt.request_id)]
        moves = [LeaseMove(preempt.lease_id, preempt.token, LeaseState.PREEMPTED, preempt.cause) for preempt in owned]
        for preempt, outcome in zip(owned, self._store.move(moves, now), strict=True):
            if not isinstance(outcome, Lease):
                log.debug("Lease %s ended before it could be preempted: %s", preempt.lease_id, outcome)
                continue
            try:
                preemptor.preempt(outcome, preempt)
            except Exception as error:  # noqa: BLE001  engines are foreign code; the lease stays marked as preempted
                log.warning("The holder of lease %s could not be told to end: %s", outcome.id, error)

    def requeue_undispatched(self, now: datetime) -> None:
        """Release what was not dispatched and let it wait again. If the store is down, the next call does it."""
        if not self._undispatched:
            return
        moves = [
            LeaseMove(failed.lease.id, failed.lease.token, LeaseState.RELEASED, failed.cause)
            for failed, _ in self._undispatched
        ]
        for failed, outcome in zip(self._undispatched, self._store.move(moves, now), strict=True):
            if isinstance(outcome, StoreError):
                log.debug("Lease %s was not dispatched and has ended already: %s", failed[0].lease.id, outcome)
        self._store.record([RequestSubmitted(pending) for _, pending in self._undispatched], now)
        self._undispatched.clear()


def _partially_granted_gangs(commit: CommitResult, pending: Mapping[str, PendingRequest]) -> set[str]:
    """Gangs of which some members were granted devices and another was refused."""
    return {pending[request_id].gang for request_id in commit.raced if request_id in pending} - {""}
