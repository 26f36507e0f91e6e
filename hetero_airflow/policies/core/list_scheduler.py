"""One pass over a queue: each request is placed where it fits best, or waits.

A walk only takes from the fleet. So a request that does not fit stays so until its end, and all equal
ones after it get the same answer, as the same objects: a decision costs what is placed, and one look at each
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.matching.explanation import alternative_account, candidate_account, nearest_worker
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import (
    Account,
    AlternativeAccount,
    Decision,
    Place,
    Reason,
    ReasonCode,
    Refuse,
    Wait,
)
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.policies.core.gang_queue import GangQueue
from hetero_airflow.policies.core.reservation import PreemptionPlan, Reservations

MayOvertake = Callable[[PendingRequest, PendingRequest], bool]
"""Whether the first request may be placed while the second is the head."""

WaitExplanation = tuple[Reason, Account]
"""Why requests wait."""

WaitExplanations = dict[str, list[WaitExplanation]]
"""What a request asks (its fingerprint) → the answers that equal ones got."""


@dataclass(slots=True)
class _EqualRequests:
    """Equal requests during one decision, and what was found out about them; shared by all their decisions."""

    request: DeviceRequest
    is_servable: bool
    """Whether a worker as it is now could run it if that were idle."""
    placed: dict[tuple[ReservedCapacity | None, int], tuple[AlternativeAccount, ...]] = field(default_factory=dict)
    """By what was kept and the alternative that was taken: how things stood at the first placement."""
    waits: dict[ReservedCapacity | None, WaitExplanation] = field(default_factory=dict)
    """By what is kept: why it does not fit beside that."""
    barred: WaitExplanation | None = None
    """Why it does not pass the head."""


class ListScheduler:
    """What is decided so far, and what there is to be known of the requests that come."""

    def __init__(
        self,
        policy: str,
        fleet: WorkerIndex,
        gangs: GangQueue,
        may_pass: MayOvertake,
        reservation: Reservations,
        room: PreemptionPlan,
        now: datetime,
        until: Mapping[str, datetime],
        before: WaitExplanations,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._gangs = gangs
        self._may_pass = may_pass
        self._reservation = reservation
        self._room = room
        self._now = now
        self._until = until
        self._before = before
        self._head: PendingRequest | None = None
        self._waiting = 0
        self._asked: dict[str, _EqualRequests] = {}
        self.decisions: list[Decision] = []
        self.until: datetime | None = None
        """When a request that waits ceases to insist on what it waits for."""
        self.answers: WaitExplanations = {}
        """For the next decision: where nothing changed, it gives the same objects."""

    def _of(self, request: DeviceRequest) -> _EqualRequests:
        asked = self._asked.get(request.fingerprint)
        if asked is None:
            is_servable = any(self._fleet.is_servable(alternative) for alternative in request.alternatives)
            asked = self._asked[request.fingerprint] = _EqualRequests(request, is_servable)
        return asked

    def is_ready(self, pending: PendingRequest) -> bool:
        """Whether it could be placed, with its gang if it has one, if the workers were idle."""
        return self._of(pending.request).is_servable and not (pending.gang and self._gangs.blocked(pending.gang))

    def step(self, unit: Sequence[PendingRequest]) -> None:
        """Decide the next of the queue: a request, or all members of a gang."""
        if unit[0].gang:
            self._step_gang(unit)
            return
        pending, head = unit[0], self._head
        asked = self._asked.get(pending.request.fingerprint) or self._of(pending.request)
        if not asked.is_servable:
            self._decide_blocked(unit)
            return
        if head is not None and not self._may_pass(pending, head):
            if asked.barred is None:
                asked.barred = self._barred(asked.request, head)
            self._wait(pending, asked.barred)
            return
        keep = self._reservation.against(pending)
        answer = asked.waits.get(keep)
        if answer is None:
            if self._place(pending, asked, keep):
                return
            reason, account = self._obstacle(asked.request, keep), self._account(asked.request, keep)
            answer = asked.waits[keep] = self._answer(asked.request, reason, account)
        room = self._room.make(unit, keep)
        if room is None:
            self._wait(pending, answer)
            self._note_waiting(unit)
        else:
            self._wait_for_room(unit, keep, room)

    def _step_gang(self, unit: Sequence[PendingRequest]) -> None:
        head = self._head
        if not all(self.is_ready(one) for one in unit):
            self._decide_blocked(unit)
        elif head is not None and not all(self._may_pass(one, head) for one in unit):
            for one in unit:
                self._wait(one, self._barred(one.request, head))
        else:
            keep = self._reservation.against(unit[0])
            if self._place_gang(unit, keep):
                return
            room = self._room.make(unit, keep)
            if room is not None:
                self._wait_for_room(unit, keep, room)
                return
            request = unit[0].request
            answer = self._answer(request, self._gangs.obstacle(unit), self._account(request, keep))
            for one in unit:
                self._wait(one, answer)
            self._note_waiting(unit)

    def _note_waiting(self, unit: Sequence[PendingRequest]) -> None:
        if self._head is None:
            self._head = unit[0]
        if not self._room.covers(unit):
            self._reservation.wait(unit)

    def _wait_for_room(self, unit: Sequence[PendingRequest], keep: ReservedCapacity | None, reason: Reason) -> None:
        """Let a request or gang that fits nowhere wait for leases that are taken back."""
        request = unit[0].request
        answer = self._answer(request, reason, self._account(request, keep, "waits for devices to be given back"))
        for one in unit:
            self._wait(one, answer)

    # -- placing -------------------------------------------------------------------------------------------------------

    def _place(self, pending: PendingRequest, asked: _EqualRequests, keep: ReservedCapacity | None) -> bool:
        fleet, request = self._fleet, asked.request
        best = best_placement(fleet, request, keep)
        if best is None:
            return False
        number, worker, fit = best
        accounts = asked.placed.get((keep, number))
        if accounts is None:
            alternatives = request.alternatives[: number + 1]
            accounts = tuple(alternative_account(fleet, alternative, keep) for alternative in alternatives)
            asked.placed[keep, number] = accounts
        words = f"placed on {fleet.entries[worker].worker.id} with score {fit.score:.4g}"
        self._take(pending, worker, number, fit, words, accounts)
        return True

    def _place_gang(self, members: Sequence[PendingRequest], keep: ReservedCapacity | None) -> bool:
        found = self._gangs.fit(members, keep)
        if found is None:
            return False
        words = self._gangs.words(members, found)
        alternatives = members[0].request.alternatives
        accounts = tuple(alternative_account(self._fleet, alternative, keep) for alternative in alternatives)
        for member, worker, number, fit in found.seatings:
            self._take(members[member], worker, number, fit, words, accounts)
        return True

    def _take(
        self,
        pending: PendingRequest,
        worker: int,
        number: int,
        fit: Fit,
        words: str,
        accounts: tuple[AlternativeAccount, ...],
    ) -> None:
        chosen = candidate_account(self._fleet, worker, fit)
        account = Account(self._policy, words, accounts, chosen)
        claims = self._fleet.claims(worker, fit)
        self.decisions.append(Place(pending.id, chosen.worker_id, number, claims, account))
        self._fleet.take(worker, fit, self._now)
        self._reservation.place(pending, worker, number, fit)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, pending: PendingRequest, answer: WaitExplanation) -> None:
        self._waiting += 1
        reason, account = answer
        if self._until and (ends := self._until.get(pending.id)) is not None:
            self.until = ends if self.until is None else min(self.until, ends)
            reason = replace(reason, until=ends) if reason.code is ReasonCode.SCATTERED else reason
        self.decisions.append(Wait(pending.id, self._waiting, reason, account))

    def _decide_blocked(self, unit: Sequence[PendingRequest]) -> None:
        """Let wait or refuse what could not be placed even if the workers were idle; of a gang, all members alike."""
        culprit = next((one for one in unit if not self._of(one.request).is_servable), None)
        if culprit is None:
            blocked = self._gangs.blocked(unit[0].gang)
            assert blocked is not None, "a request that could be placed is not blocked, unless its gang is"
            answer = self._blocked(unit[0].request, blocked, accounted=False)
            offer = f"all workers together have {blocked.found}"
        else:
            asked = self._of(culprit.request)
            if None not in asked.waits:
                asked.waits[None] = self._blocked(asked.request, self._obstacle(asked.request, None), accounted=True)
            answer = asked.waits[None]
            offer = "" if answer[0].is_transient else str(nearest_worker(self._fleet, asked.request.alternatives))
        for one in unit:
            if answer[0].is_transient:
                self._wait(one, answer)
            else:
                self.decisions.append(Refuse(one.id, answer[0], offer, answer[1]))

    def _blocked(self, request: DeviceRequest, found: Reason, *, accounted: bool) -> WaitExplanation:
        reason, words = found, "waits until the workers are others than now"
        if not reason.is_transient:
            blind = next((seat.worker for seat in self._fleet.entries if seat.worker.problems), None)
            if blind is None:
                words = "no known worker could ever run it"
            else:
                problem = f"no known device that fits, but on worker {blind.id} {blind.problems[0]}"
                reason = Reason(ReasonCode.UNPROBED, reason.asked, problem)
        account = self._account(request, None, words) if accounted else Account(self._policy, words)
        return self._answer(request, reason, account)

    def _barred(self, request: DeviceRequest, head: PendingRequest) -> WaitExplanation:
        reason = Reason(ReasonCode.RESERVED, str(request), f"that {head.id} goes first")
        return self._answer(request, reason, Account(self._policy, f"waits behind {head.id}"))

    def _obstacle(self, request: DeviceRequest, keep: ReservedCapacity | None) -> Reason:
        near = nearest_worker(self._fleet, request.alternatives, keep)
        assert near is not None, "a request that fits nowhere has a miss on each worker"
        return Reason(near.reason.code, near.reason.asked, f"{near.reason.found} (worker {near.worker_id})")

    def _account(self, request: DeviceRequest, keep: ReservedCapacity | None, words: str | None = None) -> Account:
        """How things stand for a request that waits."""
        accounts = tuple(alternative_account(self._fleet, alternative, keep) for alternative in request.alternatives)
        queued = "waits, first in the queue" if self._head is None else f"waits behind {self._head.id}"
        return Account(self._policy, words or queued, accounts)

    def _answer(self, request: DeviceRequest, reason: Reason, account: Account) -> WaitExplanation:
        """The answer, as the same objects as in the last decision if nothing of it changed: then it is no news."""
        new = (reason, account)
        answer = next((old for old in self._before.get(request.fingerprint, ()) if old == new), new)
        self.answers.setdefault(request.fingerprint, []).append(answer)
        return answer


def best_placement(
    fleet: WorkerIndex, request: DeviceRequest, keep: ReservedCapacity | None
) -> tuple[int, int, Fit] | None:
    """Where a request fits best beside what is kept: which alternative, on which worker, and how; None for nowhere.

    The first alternative that fits where the request orders them, else that with the best score.
    """
    best: tuple[int, int, Fit] | None = None
    for number, alternative in enumerate(request.alternatives):
        found = fleet.ranking(alternative, keep).first()
        if found is not None and (best is None or found[1].score > best[2].score):
            best = (number, *found)
            if request.is_ordered:
                break
    return best
