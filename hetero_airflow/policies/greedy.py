"""The algorithm that the simple policies share: list scheduling with a reservation for the head.

The queue is walked in the policy's order and each request is placed where it fits best. The first
that must wait for running work is the head: whatever it could ever use is kept free for it, and later
requests may only be placed beside that. No durations are known, so this is the one form of
backfill that can't delay the head (EASY, Lifka 1995, with a shadow time of "any moment").

Requests that no present worker could serve even if it were idle (lost, unwell, or impossible) stand
behind the queue: nothing that runs is in their way, so nothing is kept for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.matching.explain import alternative_account, nearest
from hetero_airflow.matching.fleet import Fleet
from hetero_airflow.matching.matcher import Fit, Matcher
from hetero_airflow.matching.scoring import Placement
from hetero_airflow.model.plan import (
    Account,
    AlternativeAccount,
    Decision,
    Place,
    Plan,
    Reason,
    ReasonCode,
    Refuse,
    Wait,
)
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Pending, Snapshot

Order = Callable[[Iterable[Pending], Snapshot], list[Pending]]
"""The plug-in point: the requests as a queue. Total: no two orders of one input."""

Backfill = Callable[[Pending, Pending], bool]
"""Whether the first request may be placed while the second is the head."""


class Greedy:
    """A policy made of an order and a placement. Pure: what it remembers changes no answer."""

    def __init__(
        self, name: str, order: Order, placement: Placement, may_pass: Backfill = lambda pending, head: True
    ) -> None:
        self.name = name
        self._order = order
        self._may_pass = may_pass
        self._matcher = Matcher(placement)

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return Plan(tuple(self._without_workers(snapshot)))
        self._matcher.trim()
        walk = _Walk(self.name, Fleet(self._matcher, snapshot), self._may_pass, now)
        ready = [pending for pending in snapshot.pending if walk.is_servable(pending.request)]
        ids = {pending.id for pending in ready}
        blocked = [pending for pending in snapshot.pending if pending.id not in ids]
        for pending in [*self._order(ready, snapshot), *self._order(blocked, snapshot)]:
            walk.step(pending)
        return Plan(tuple(walk.decisions))

    def _without_workers(self, snapshot: Snapshot) -> Iterable[Decision]:
        for position, pending in enumerate(self._order(snapshot.pending, snapshot), start=1):
            reason = Reason(ReasonCode.NO_WORKER, str(pending.request), "no worker yet")
            yield Wait(pending.id, position, reason, Account(self.name, "waits for a first worker"))


class _Walk:
    """One pass over the queue. Equal requests are asked about once for as long as nothing changes."""

    def __init__(self, policy: str, fleet: Fleet, may_pass: Backfill, now: datetime) -> None:
        self._policy = policy
        self._fleet = fleet
        self._may_pass = may_pass
        self._now = now
        self._head: Pending | None = None
        self._waiting = 0
        self._servable: dict[str, bool] = {}
        self._obstacles: dict[str, tuple[int, Reason, tuple[AlternativeAccount, ...]]] = {}
        self.decisions: list[Decision] = []

    def is_servable(self, request: DeviceRequest) -> bool:
        """Whether a worker as it is now could run it if that were idle."""
        known = self._servable.get(request.fingerprint)
        if known is None:
            known = any(self._fleet.is_servable(alternative) for alternative in request.alternatives)
            self._servable[request.fingerprint] = known
        return known

    def step(self, pending: Pending) -> None:
        """Decide the next request of the queue."""
        if not self.is_servable(pending.request):
            self._decide_blocked(pending)
        elif self._head is not None and not self._may_pass(pending, self._head):
            reason = Reason(ReasonCode.RESERVED, str(pending.request), f"that {self._head.id} goes first")
            self._wait(pending, reason, ())
        elif not self._place(pending):
            self._wait(pending, *self._obstacle(pending.request))
            if self._head is None:
                self._head = pending
                self._fleet.keep_for(pending.request.alternatives)
                self._obstacles.clear()

    def _place(self, pending: Pending) -> bool:
        best: tuple[int, int, Fit] | None = None
        for number, alternative in enumerate(pending.request.alternatives):
            for worker, fit in self._fleet.ranking(alternative).best():
                if best is None or fit.score > best[2].score:
                    best = (number, worker, fit)
            if best is not None and pending.request.is_ordered:
                break
        if best is None:
            return False
        number, worker, fit = best
        worker_id = self._fleet.seats[worker].worker.id
        account = Account(
            self._policy,
            f"placed on {worker_id} with score {fit.score:.4g}",
            tuple(alternative_account(self._fleet, a) for a in pending.request.alternatives[: number + 1]),
        )
        self.decisions.append(Place(pending.id, worker_id, number, self._fleet.claims(worker, fit), account))
        self._fleet.take(worker, fit, self._now)
        return True

    def _obstacle(self, request: DeviceRequest) -> tuple[Reason, tuple[AlternativeAccount, ...]]:
        known = self._obstacles.get(request.fingerprint)
        if known is None or known[0] != self._fleet.version:
            near = nearest(self._fleet, request.alternatives)
            assert near is not None, "a request that fits nowhere has a miss on each worker"
            reason = Reason(near.reason.code, near.reason.asked, f"{near.reason.found} (worker {near.worker_id})")
            accounts = tuple(alternative_account(self._fleet, alternative) for alternative in request.alternatives)
            known = self._obstacles[request.fingerprint] = (self._fleet.version, reason, accounts)
        return known[1], known[2]

    def _decide_blocked(self, pending: Pending) -> None:
        reason, accounts = self._obstacle(pending.request)
        if reason.is_transient:
            self._wait(pending, reason, accounts)
            return
        blind = next((seat.worker for seat in self._fleet.seats if seat.worker.problems), None)
        if blind is not None:
            found = f"no known device that fits, but on worker {blind.id} {blind.problems[0]}"
            self._wait(pending, Reason(ReasonCode.UNPROBED, reason.asked, found), accounts)
            return
        near = nearest(self._fleet, pending.request.alternatives)
        account = Account(self._policy, "no known worker could ever run it", accounts)
        self.decisions.append(Refuse(pending.id, reason, str(near), account))

    def _wait(self, pending: Pending, reason: Reason, accounts: tuple[AlternativeAccount, ...]) -> None:
        self._waiting += 1
        behind = "" if self._head is None else f", behind {self._head.id}"
        account = Account(self._policy, f"waits at position {self._waiting}{behind}", accounts)
        self.decisions.append(Wait(pending.id, self._waiting, reason, account))
