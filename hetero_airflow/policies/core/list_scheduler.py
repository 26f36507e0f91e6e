"""One pass over a queue: each request is placed where it fits best, or waits.

A pass takes capacity and never gives any back. So a request that does not fit now can't fit later in the same pass, and
neither can an equal request behind it. Such requests get the same explanation, as the same object, and are not matched
again: the time of a pass is the time of the placements, and one look at each other request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetero_airflow.matching.accounts import alternative_account, candidate_account, nearest_worker
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Account, AlternativeAccount, Decision, Place, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.problem_lines import concerns
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.policies.core.backfill import HeadReservation
from hetero_airflow.policies.core.data_hosts import DataHosts
from hetero_airflow.policies.core.gang_queue import GangQueue
from hetero_airflow.policies.core.preemption import PreemptionPlan
from hetero_airflow.units import format_bytes

MayOvertake = Callable[[PendingRequest, PendingRequest], bool]
"""Whether the first request may be placed before the second one, which is the head of the queue."""

WaitExplanation = tuple[Reason, Account]
"""Why a request waits."""

WaitExplanations = dict[str, list[WaitExplanation]]
"""Fingerprint of a request → the explanations that requests with it got."""


@dataclass(slots=True)
class _RequestFindings:
    """What this pass knows about equal requests; all their decisions share it."""

    request: DeviceRequest
    is_servable: bool
    """Whether a current worker could run it if that worker were idle."""
    accounts: dict[tuple[ReservedCapacity | None, int], tuple[AlternativeAccount, ...]] = field(default_factory=dict)
    """(what was reserved, alternative) → the account of the first placement."""
    explanations: dict[ReservedCapacity | None, WaitExplanation] = field(default_factory=dict)
    """What is reserved → why the request does not fit beside that."""
    behind_head: WaitExplanation | None = None
    """Why it may not overtake the head."""


class ListScheduler:
    """Decides on a queue, one unit after the other. A unit is one request, or all members of a gang.

    The head of the queue is the first request that waits until running work ends.

    :param may_overtake: None: every later request may be placed before the head
    :param budget_ends: request id → when its topology wait budget ends
    :param previous_explanations: those of the last pass
    """

    def __init__(
        self,
        policy: str,
        index: WorkerIndex,
        gangs: GangQueue,
        may_overtake: MayOvertake | None,
        reservations: HeadReservation,
        preemption: PreemptionPlan,
        data: DataHosts,
        now: datetime,
        budget_ends: Mapping[str, datetime],
        previous_explanations: WaitExplanations,
    ) -> None:
        self._policy = policy
        self._index = index
        self._gangs = gangs
        self._may_overtake = may_overtake
        self._reservations = reservations
        self._preemption = preemption
        self._data = data
        self._now = now
        self._budget_ends = budget_ends
        self._previous_explanations = previous_explanations
        self._head: PendingRequest | None = None
        self._waiting = 0
        self._findings: dict[str, _RequestFindings] = {}
        self.decisions: list[Decision] = []
        self.until: datetime | None = None
        """When the first topology wait budget of a waiting request ends."""
        self.explanations: WaitExplanations = {}
        """For the next pass, which uses the same objects again where nothing changed."""

    def schedule_next(self, unit: Sequence[PendingRequest]) -> None:
        """Place the next unit of the queue, let it wait, or refuse it."""
        findings = self._findings_on(unit[0].request)
        if not findings.is_servable or (unit[0].gang and not all(map(self.could_run_when_idle, unit))):
            self._wait_or_refuse(unit)
            return
        head, may_overtake = self._head, self._may_overtake
        if head and may_overtake and not all(may_overtake(pending, head) for pending in unit):
            self._wait_behind_head(unit, head)
            return
        reserved = self._reservations.reserved_from(unit[0])
        explanation = None if unit[0].gang else findings.explanations.get(reserved)
        if explanation is None:  # no equal request was tried beside the same reservations
            if self._place(unit, findings, reserved):
                return
            explanation = self._explain(unit, findings, reserved)
        preemption = self._preemption.plan_for(unit, reserved)
        if preemption is not None:
            self._wait_for_preemption(unit, reserved, preemption)
        else:
            self._wait_for_running_work(unit, explanation)

    def could_run_when_idle(self, pending: PendingRequest) -> bool:
        """Whether it could be placed, with its gang if it has one, if all workers were idle."""
        is_servable = self._findings_on(pending.request).is_servable
        return is_servable and not (pending.gang and self._gangs.blocked(pending.gang))

    def _findings_on(self, request: DeviceRequest) -> _RequestFindings:
        findings = self._findings.get(request.fingerprint)
        if findings is None:
            is_servable = any(self._index.is_servable(alternative) for alternative in request.alternatives)
            findings = self._findings[request.fingerprint] = _RequestFindings(request, is_servable)
        return findings

    # -- placing -------------------------------------------------------------------------------------------------------

    def _place(
        self, unit: Sequence[PendingRequest], findings: _RequestFindings, reserved: ReservedCapacity | None
    ) -> bool:
        """Place the request or the gang beside what is reserved; False if it does not fit."""
        if unit[0].gang:
            return self._place_gang(unit, reserved)
        placement = best_placement(self._index, findings.request, reserved)
        if placement is None:
            return False
        alternative, worker, fit = placement
        if findings.request.data:
            options = findings.request.alternatives
            worker, fit = self._data.warmest(findings.request, options[alternative], reserved, (worker, fit))
        accounts = findings.accounts.get((reserved, alternative))
        if accounts is None:
            accounts = self._alternative_accounts(findings.request, reserved, alternative + 1)
            findings.accounts[reserved, alternative] = accounts
        summary = f"placed on {self._index.entries[worker].worker.id} with score {fit.score:.4g}"
        if held_bytes := self._data.held_bytes(findings.request, worker):
            summary += f"; its host has {format_bytes(held_bytes)} of the data in its cache"
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
                if reason.code is ReasonCode.SCATTERED:
                    reason = replace(reason, until=ends, then="it takes any free devices")
            self.decisions.append(Wait(pending.id, self._waiting, reason, account))

    def _wait_for_running_work(self, unit: Sequence[PendingRequest], explanation: WaitExplanation) -> None:
        """Let the unit wait until running work ends. The first such unit is the head of the queue."""
        self._wait(unit, explanation)
        if self._head is None:
            self._head = unit[0]
        self._reservations.note_waiting(unit)

    def _wait_for_preemption(
        self, unit: Sequence[PendingRequest], reserved: ReservedCapacity | None, reason: Reason
    ) -> None:
        request = unit[0].request
        account = self._account(request, reserved, "waits for devices to be given back")
        self._wait(unit, self._reuse_equal(request, reason, account))
        if self._head is None and self._may_overtake is not None:
            self._head = unit[0]

    def _wait_behind_head(self, unit: Sequence[PendingRequest], head: PendingRequest) -> None:
        for pending in unit:
            findings = self._findings_on(pending.request)
            if findings.behind_head is None:
                reason = Reason(ReasonCode.RESERVED, str(findings.request), f"{head.id} ahead in the queue")
                account = Account(self._policy, f"waits behind {head.id}")
                findings.behind_head = self._reuse_equal(findings.request, reason, account)
            self._wait((pending,), findings.behind_head)

    def _wait_or_refuse(self, unit: Sequence[PendingRequest]) -> None:
        """Let a unit wait, or refuse it, that does not fit even if all workers are idle. A gang has one decision."""
        unservable = next((pending for pending in unit if not self._findings_on(pending.request).is_servable), None)
        if unservable is None:
            blocked = self._gangs.blocked(unit[0].gang)
            assert blocked is not None, "a servable request is blocked only by its gang"
            explanation = self._explain_blocked(unit[0].request, blocked, has_alternatives=False)
            offer = f"all workers together have {blocked.found} ({blocked.code}: asked {blocked.asked})"
        else:
            findings = self._findings_on(unservable.request)
            if None not in findings.explanations:
                obstacle = self._obstacle(findings.request, None)
                findings.explanations[None] = self._explain_blocked(findings.request, obstacle, has_alternatives=True)
            explanation = findings.explanations[None]
            is_transient = explanation[0].is_transient
            offer = "" if is_transient else str(nearest_worker(self._index, findings.request.alternatives))
        if explanation[0].is_transient:
            self._wait(unit, explanation)
        else:
            self.decisions += (Refuse(pending.id, explanation[0], offer, explanation[1]) for pending in unit)

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _explain(
        self, unit: Sequence[PendingRequest], findings: _RequestFindings, reserved: ReservedCapacity | None
    ) -> WaitExplanation:
        """Why a request or gang does not fit now."""
        if unit[0].gang:
            return self._reuse_equal(
                findings.request, self._gangs.obstacle(unit), self._account(findings.request, reserved)
            )
        obstacle, account = self._obstacle(findings.request, reserved), self._account(findings.request, reserved)
        explanation = findings.explanations[reserved] = self._reuse_equal(findings.request, obstacle, account)
        return explanation

    def _explain_blocked(self, request: DeviceRequest, reason: Reason, *, has_alternatives: bool) -> WaitExplanation:
        """Why a request could not be placed even on idle workers."""
        summary = "waits until the workers change"
        if not reason.is_transient:
            unprobed = self._first_problem(request)
            if unprobed is None:
                summary = "no known worker could ever run it"
            else:
                problem = f"no known device that fits, but on worker {unprobed[0]} {unprobed[1]}"
                reason = Reason(ReasonCode.UNPROBED, reason.asked, problem)
        account = self._account(request, None, summary) if has_alternatives else Account(self._policy, summary)
        return self._reuse_equal(request, reason, account)

    def _first_problem(self, request: DeviceRequest) -> tuple[str, str] | None:
        """Worker and line of the first problem because of which a device for the request may be missing."""
        wanted = {(alternative.vendor, alternative.kind) for alternative in request.alternatives}
        lines = ((entry.worker.id, line) for entry in self._index.entries for line in entry.worker.problems)
        return next((found for found in lines if any(concerns(found[1], *pair) for pair in wanted)), None)

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
        self, request: DeviceRequest, reserved: ReservedCapacity | None, count: int | None = None
    ) -> tuple[AlternativeAccount, ...]:
        """The accounts of the first `count` alternatives; None means all of them."""
        return tuple(
            alternative_account(self._index, alternative, reserved) for alternative in request.alternatives[:count]
        )

    def _reuse_equal(self, request: DeviceRequest, reason: Reason, account: Account) -> WaitExplanation:
        """The explanation; the object of the last pass if that is equal, so that the store has nothing to write."""
        new = (reason, account)
        earlier = self._previous_explanations.get(request.fingerprint, ())
        explanation = next((old for old in earlier if old == new), new)
        self.explanations.setdefault(request.fingerprint, []).append(explanation)
        return explanation


def best_placement(
    index: WorkerIndex, request: DeviceRequest, reserved: ReservedCapacity | None
) -> tuple[int, int, Fit] | None:
    """(alternative, worker, fit) where a request fits best beside what is reserved; None if it fits nowhere.

    If the request orders its alternatives, the first one that fits is taken, else the one with the best score.
    """
    best: tuple[int, int, Fit] | None = None
    for number, alternative in enumerate(request.alternatives):
        first = index.ranking(alternative, reserved).first()
        if first is not None and (best is None or first[1].score > best[2].score):
            best = (number, *first)
            if request.is_ordered:
                break
    return best
