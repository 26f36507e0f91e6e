"""The algorithm that the simple policies share: list scheduling with a reservation for the head.

The queue is walked in the policy's order and each request is placed where it fits best. The first
that must wait for running work is the head: whatever it could ever use is kept free for it, and later
requests may only be placed beside that. No durations are known, so this is the one form of
backfill that can't delay the head (EASY, Lifka 1995, with a shadow time of "any moment").

The members of a gang stand in the queue where the first of them stands, and are placed all at once or not at
all. A gang of which members are missing stands behind the queue: nothing is kept for it, and it holds nothing.

Requests that no present worker could serve even if it were idle (lost, unwell, or impossible) stand
behind the queue: nothing that runs is in their way, so nothing is kept for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from hetero_airflow.matching.explain import alternative_account, nearest
from hetero_airflow.matching.fleet import Fleet
from hetero_airflow.matching.ground import Ground
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
from hetero_airflow.policies.gang_queue import GangQueue, in_units
from hetero_airflow.policies.insistence import insist

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
        self._ground: Ground | None = None

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return Plan(tuple(self._without_workers(snapshot)))
        self._matcher.trim()
        return self._place(snapshot, Fleet(self._matcher, snapshot), self._order, self._may_pass, now)

    def _place(self, snapshot: Snapshot, fleet: Fleet, order: Order, may_pass: Backfill, now: datetime) -> Plan:
        """The walk over the queue of this order."""
        if self._ground is None or self._ground.seats != fleet.seats:
            self._ground = Ground(fleet.seats, fleet.matcher)
        asked = insist(snapshot.pending, now, fleet.is_servable, self._ground.fits_when_idle)
        gangs = GangQueue(snapshot, asked.pending, fleet, self._ground, now)
        walk = _Walk(self.name, fleet, gangs, may_pass, now, asked.until)
        ready = [pending for pending in asked.pending if walk.is_ready(pending)]
        ids = {pending.id for pending in ready}
        blocked = [pending for pending in asked.pending if pending.id not in ids]
        for unit in in_units([*order(ready, snapshot), *order(blocked, snapshot)]):
            walk.step(unit)
        return Plan(tuple(walk.decisions), until=walk.until)

    def _without_workers(self, snapshot: Snapshot) -> Iterable[Decision]:
        for position, pending in enumerate(self._order(snapshot.pending, snapshot), start=1):
            reason = Reason(ReasonCode.NO_WORKER, str(pending.request), "no worker yet")
            yield Wait(pending.id, position, reason, Account(self.name, "waits for a first worker"))


class _Walk:
    """One pass over the queue. Equal requests are asked about once for as long as nothing changes."""

    def __init__(
        self,
        policy: str,
        fleet: Fleet,
        gangs: GangQueue,
        may_pass: Backfill,
        now: datetime,
        until: Mapping[str, datetime],
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._gangs = gangs
        self._may_pass = may_pass
        self._now = now
        self._until = until
        self._head: Pending | None = None
        self._waiting = 0
        self._servable: dict[str, bool] = {}
        self._obstacles: dict[str, tuple[int, Reason, tuple[AlternativeAccount, ...]]] = {}
        self.decisions: list[Decision] = []
        self.until: datetime | None = None
        """When a request that waits ceases to insist on what it waits for."""

    def is_ready(self, pending: Pending) -> bool:
        """Whether it could be placed, with its gang if it has one, if the workers were idle."""
        return self.is_servable(pending.request) and not (pending.gang and self._gangs.blocked(pending.gang))

    def is_servable(self, request: DeviceRequest) -> bool:
        """Whether a worker as it is now could run it if that were idle."""
        known = self._servable.get(request.fingerprint)
        if known is None:
            known = any(self._fleet.is_servable(alternative) for alternative in request.alternatives)
            self._servable[request.fingerprint] = known
        return known

    def step(self, unit: Sequence[Pending]) -> None:
        """Decide the next of the queue: a request, or all members of a gang."""
        head = self._head
        if not all(self.is_ready(one) for one in unit):
            self._decide_blocked(unit)
        elif head is not None and not all(self._may_pass(one, head) for one in unit):
            for one in unit:
                reason = Reason(ReasonCode.RESERVED, str(one.request), f"that {head.id} goes first")
                self._wait(one, reason, ())
        elif not (self._place_gang(unit) if unit[0].gang else self._place(unit[0])):
            reason, accounts = self._gang_obstacle(unit) if unit[0].gang else self._obstacle(unit[0].request)
            for one in unit:
                self._wait(one, reason, accounts)
            if head is None:
                self._head = unit[0]
                self._fleet.keep_for(tuple(a for one in unit for a in one.request.alternatives), len(unit))
                self._obstacles.clear()
                self._gangs.note_kept()

    def _place_gang(self, members: Sequence[Pending]) -> bool:
        fit = self._gangs.fit(members)
        if fit is None:
            return False
        words = self._gangs.words(members, fit)
        accounts = tuple(alternative_account(self._fleet, a) for a in members[0].request.alternatives)
        for seating in fit.seatings:
            one, worker = members[seating.member], self._fleet.seats[seating.worker].worker
            claims = self._fleet.claims(seating.worker, seating.fit)
            account = Account(self._policy, words, accounts)
            self.decisions.append(Place(one.id, worker.id, seating.alternative, claims, account))
            self._fleet.take(seating.worker, seating.fit, self._now)
        return True

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

    def _gang_obstacle(self, members: Sequence[Pending]) -> tuple[Reason, tuple[AlternativeAccount, ...]]:
        accounts = (alternative_account(self._fleet, alternative) for alternative in members[0].request.alternatives)
        return self._gangs.obstacle(members), tuple(accounts)

    def _decide_blocked(self, unit: Sequence[Pending]) -> None:
        """Let wait or refuse what could not be placed even if the workers were idle; of a gang, all members alike."""
        culprit = next((one for one in unit if not self.is_servable(one.request)), None)
        if culprit is not None:
            reason, accounts = self._obstacle(culprit.request)
            offer = str(nearest(self._fleet, culprit.request.alternatives))
        else:
            blocked = self._gangs.blocked(unit[0].gang)
            assert blocked is not None, "a request that could be placed is not blocked, unless its gang is"
            reason, accounts = blocked, ()
            offer = f"all workers together have {reason.found}"
        blind = next((seat.worker for seat in self._fleet.seats if seat.worker.problems), None)
        if not reason.is_transient and blind is not None:
            found = f"no known device that fits, but on worker {blind.id} {blind.problems[0]}"
            reason = Reason(ReasonCode.UNPROBED, reason.asked, found)
        for one in unit:
            if reason.is_transient:
                self._wait(one, reason, accounts)
            else:
                account = Account(self._policy, "no known worker could ever run it", accounts)
                self.decisions.append(Refuse(one.id, reason, offer, account))

    def _wait(self, pending: Pending, reason: Reason, accounts: tuple[AlternativeAccount, ...]) -> None:
        self._waiting += 1
        behind = "" if self._head is None else f", behind {self._head.id}"
        account = Account(self._policy, f"waits at position {self._waiting}{behind}", accounts)
        ends = self._until.get(pending.id)
        if ends is not None:
            self.until = ends if self.until is None else min(self.until, ends)
            reason = replace(reason, until=ends) if reason.code is ReasonCode.SCATTERED else reason
        self.decisions.append(Wait(pending.id, self._waiting, reason, account))
