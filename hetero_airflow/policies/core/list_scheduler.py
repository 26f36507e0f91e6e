"""One pass over a queue: each request is placed where it fits best, or waits.

A pass only takes capacity and never gives any back. So a request that does not fit stays without a place until the
end of the pass. All equal requests behind it get the same explanation, as the same object: a decision costs the
placements and one look at each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.matching.explanation import alternative_account, candidate_account, nearest_worker
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Account, AlternativeAccount, Decision, Place, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.policies.core.gang_queue import GangQueue
from hetero_airflow.policies.core.reservation import PreemptionPlan, Reservations

MayOvertake = Callable[[PendingRequest, PendingRequest], bool]
"""Whether the first request may be placed while the second is the head of the queue. None: always."""

WaitExplanation = tuple[Reason, Account]
"""Why a request waits."""

WaitExplanations = dict[str, list[WaitExplanation]]
"""Fingerprint of a request → the explanations that requests with it got."""


@dataclass(slots=True)
class _EqualRequests:
    """What is known of equal requests during one decision; all their decisions share it."""

    request: DeviceRequest
    is_servable: bool
    """Whether a current worker could run it if that worker were idle."""
    accounts: dict[tuple[ReservedCapacity | None, int], tuple[AlternativeAccount, ...]] = field(default_factory=dict)
    """(what was reserved, alternative) → the account of the first placement."""
    waits: dict[ReservedCapacity | None, WaitExplanation] = field(default_factory=dict)
    """What is reserved → why the request does not fit beside that."""
    behind_head: WaitExplanation | None = None
    """Why it may not overtake the head."""


class ListScheduler:
    """Decides over the units of a queue, one after the other.

    :param until: request id → when its topology wait budget ends
    :param previous: the explanations of the last decision
    """

    def __init__(
        self,
        policy: str,
        index: WorkerIndex,
        gangs: GangQueue,
        may_overtake: MayOvertake | None,
        reservations: Reservations,
        preemption: PreemptionPlan,
        now: datetime,
        until: Mapping[str, datetime],
        previous: WaitExplanations,
    ) -> None:
        self._policy = policy
        self._index = index
        self._gangs = gangs
        self._may_overtake = may_overtake
        self._reservations = reservations
        self._preemption = preemption
        self._now = now
        self._budget_ends = until
        self._previous = previous
        self._head: PendingRequest | None = None
        self._waiting = 0
        self._equals: dict[str, _EqualRequests] = {}
        self.decisions: list[Decision] = []
        self.until: datetime | None = None
        """When the first topology wait budget of a waiting request ends."""
        self.explanations: WaitExplanations = {}
        """For the next decision, which reuses the objects where nothing changed."""

    def schedule_next(self, unit: Sequence[PendingRequest]) -> None:
        """Decide the next unit of the queue: one request, or all members of a gang."""
        equals = self._equal_requests(unit[0].request)
        if not equals.is_servable or (unit[0].gang and not all(map(self.could_run_when_idle, unit))):
            self._wait_or_refuse(unit)
            return
        head, may_overtake = self._head, self._may_overtake
        if head and may_overtake and not all(may_overtake(pending, head) for pending in unit):
            self._wait_behind_head(unit, head)
            return
        reserved = self._reservations.reserved_from(unit[0])
        explanation = None if unit[0].gang else equals.waits.get(reserved)
        if explanation is None:
            if self._place(unit, equals, reserved):
                return
            explanation = self._explain(unit, equals, reserved)
        preemption = self._preemption.plan_for(unit, reserved)
        if preemption is not None:
            self._wait_for_preemption(unit, reserved, preemption)
        else:
            self._wait_for_running_work(unit, explanation)

    def could_run_when_idle(self, pending: PendingRequest) -> bool:
        """Whether it could be placed, with its gang if it has one, if all workers were idle."""
        is_servable = self._equal_requests(pending.request).is_servable
        return is_servable and not (pending.gang and self._gangs.blocked(pending.gang))

    def _equal_requests(self, request: DeviceRequest) -> _EqualRequests:
        equals = self._equals.get(request.fingerprint)
        if equals is None:
            is_servable = any(self._index.is_servable(alternative) for alternative in request.alternatives)
            equals = self._equals[request.fingerprint] = _EqualRequests(request, is_servable)
        return equals

    # -- placing -------------------------------------------------------------------------------------------------------

    def _place(self, unit: Sequence[PendingRequest], equals: _EqualRequests, reserved: ReservedCapacity | None) -> bool:
        """Place the request or the gang beside what is reserved; False if it does not fit."""
        if unit[0].gang:
            return self._place_gang(unit, reserved)
        best = best_placement(self._index, equals.request, reserved)
        if best is None:
            return False
        alternative, worker, fit = best
        accounts = equals.accounts.get((reserved, alternative))
        if accounts is None:
            accounts = self._alternative_accounts(equals.request, reserved, alternative + 1)
            equals.accounts[reserved, alternative] = accounts
        summary = f"placed on {self._index.entries[worker].worker.id} with score {fit.score:.4g}"
        self._take(unit[0], worker, alternative, fit, summary, accounts)
        return True

    def _place_gang(self, members: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> bool:
        gang_fit = self._gangs.fit(members, reserved)
        if gang_fit is None:
            return False
        summary = self._gangs.summary(members, gang_fit)
        accounts = self._alternative_accounts(members[0].request, reserved)
        for member, worker, alternative, fit in gang_fit.placements:
            self._take(members[member], worker, alternative, fit, summary, accounts)
        return True

    def _take(
        self,
        pending: PendingRequest,
        worker: int,
        alternative: int,
        fit: Fit,
        summary: str,
        accounts: tuple[AlternativeAccount, ...],
    ) -> None:
        chosen = candidate_account(self._index, worker, fit)
        account = Account(self._policy, summary, accounts, chosen)
        claims = self._index.claims(worker, fit)
        self.decisions.append(Place(pending.id, chosen.worker_id, alternative, claims, account))
        self._index.take(worker, fit, self._now)
        self._reservations.note_placed(pending, worker, alternative, fit)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, unit: Sequence[PendingRequest], explanation: WaitExplanation) -> None:
        for pending in unit:
            self._waiting += 1
            reason, account = explanation
            ends = self._budget_ends.get(pending.id)
            if ends is not None:
                self.until = ends if self.until is None else min(self.until, ends)
                reason = replace(reason, until=ends) if reason.code is ReasonCode.SCATTERED else reason
            self.decisions.append(Wait(pending.id, self._waiting, reason, account))

    def _wait_for_running_work(self, unit: Sequence[PendingRequest], explanation: WaitExplanation) -> None:
        """The first unit that waits for running work becomes the head of the queue."""
        self._wait(unit, explanation)
        if self._head is None:
            self._head = unit[0]
        if not self._preemption.can_reclaim(unit):
            self._reservations.note_waiting(unit)

    def _wait_for_preemption(
        self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None, reason: Reason
    ) -> None:
        request = unit[0].request
        account = self._account(request, reserved, "waits for devices to be given back")
        self._wait(unit, self._reused(request, reason, account))

    def _wait_behind_head(self, unit: Sequence[PendingRequest], head: PendingRequest) -> None:
        for pending in unit:
            equals = self._equal_requests(pending.request)
            if equals.behind_head is None:
                reason = Reason(ReasonCode.RESERVED, str(equals.request), f"{head.id} ahead in the queue")
                account = Account(self._policy, f"waits behind {head.id}")
                equals.behind_head = self._reused(equals.request, reason, account)
            self._wait((pending,), equals.behind_head)

    def _wait_or_refuse(self, unit: Sequence[PendingRequest]) -> None:
        """A unit that can't be placed even on idle workers waits or is refused, all members of a gang alike."""
        unservable = next((pending for pending in unit if not self._equal_requests(pending.request).is_servable), None)
        if unservable is None:
            blocked = self._gangs.blocked(unit[0].gang)
            assert blocked is not None, "a servable request is blocked only by its gang"
            explanation = self._explain_blocked(unit[0].request, blocked, has_alternatives=False)
            offer = f"all workers together have {blocked.found}"
        else:
            equals = self._equal_requests(unservable.request)
            if None not in equals.waits:
                obstacle = self._obstacle(equals.request, None)
                equals.waits[None] = self._explain_blocked(equals.request, obstacle, has_alternatives=True)
            explanation = equals.waits[None]
            is_transient = explanation[0].is_transient
            offer = "" if is_transient else str(nearest_worker(self._index, equals.request.alternatives))
        if explanation[0].is_transient:
            self._wait(unit, explanation)
        else:
            self.decisions += (Refuse(pending.id, explanation[0], offer, explanation[1]) for pending in unit)

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _explain(
        self, unit: Sequence[PendingRequest], equals: _EqualRequests, reserved: ReservedCapacity | None
    ) -> WaitExplanation:
        """Why a request or gang does not fit now."""
        if unit[0].gang:
            return self._reused(equals.request, self._gangs.obstacle(unit), self._account(equals.request, reserved))
        obstacle, account = self._obstacle(equals.request, reserved), self._account(equals.request, reserved)
        explanation = equals.waits[reserved] = self._reused(equals.request, obstacle, account)
        return explanation

    def _explain_blocked(self, request: DeviceRequest, reason: Reason, *, has_alternatives: bool) -> WaitExplanation:
        """Why a request could not be placed even on idle workers."""
        summary = "waits until the workers change"
        if not reason.is_transient:
            unprobed = next((entry.worker for entry in self._index.entries if entry.worker.problems), None)
            if unprobed is None:
                summary = "no known worker could ever run it"
            else:
                problem = f"no known device that fits, but on worker {unprobed.id} {unprobed.problems[0]}"
                reason = Reason(ReasonCode.UNPROBED, reason.asked, problem)
        account = self._account(request, None, summary) if has_alternatives else Account(self._policy, summary)
        return self._reused(request, reason, account)

    def _obstacle(self, request: DeviceRequest, reserved: ReservedCapacity | None) -> Reason:
        nearest = nearest_worker(self._index, request.alternatives, reserved)
        assert nearest is not None, "each worker rejects a request that fits nowhere"
        return Reason(nearest.reason.code, nearest.reason.asked, f"{nearest.reason.found} (worker {nearest.worker_id})")

    def _account(
        self, request: DeviceRequest, reserved: ReservedCapacity | None, summary: str | None = None
    ) -> Account:
        in_queue = "waits, first in the queue" if self._head is None else f"waits behind {self._head.id}"
        return Account(self._policy, summary or in_queue, self._alternative_accounts(request, reserved))

    def _alternative_accounts(
        self, request: DeviceRequest, reserved: ReservedCapacity | None, number: int | None = None
    ) -> tuple[AlternativeAccount, ...]:
        """The accounts of the first `count` alternatives; None is all."""
        return tuple(
            alternative_account(self._index, alternative, reserved) for alternative in request.alternatives[:number]
        )

    def _reused(self, request: DeviceRequest, reason: Reason, account: Account) -> WaitExplanation:
        """The explanation, as the object of the last decision if it is equal: then nothing new has to be stored."""
        new = (reason, account)
        explanation = next((old for old in self._previous.get(request.fingerprint, ()) if old == new), new)
        self.explanations.setdefault(request.fingerprint, []).append(explanation)
        return explanation


def best_placement(
    index: WorkerIndex, request: DeviceRequest, reserved: ReservedCapacity | None
) -> tuple[int, int, Fit] | None:
    """(alternative, worker, fit) where a request fits best beside what is reserved; None if it fits nowhere.

    If the request orders its alternatives, the first that fits; else the one with the best score.
    """
    best: tuple[int, int, Fit] | None = None
    for number, alternative in enumerate(request.alternatives):
        first = index.ranking(alternative, reserved).first()
        if first is not None and (best is None or first[1].score > best[2].score):
            best = (number, *first)
            if request.is_ordered:
                break
    return best
