"""One pass: reap, snapshot, decide, commit, dispatch, leave the rest pending with its reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hetero_airflow.engines.engine import Engine
from hetero_airflow.engines.preemptor import Preemptor
from hetero_airflow.errors import StoreError
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Decision, Plan, Preempt, Refuse, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.policy import Policy, period_of
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.gangs import partially_granted_gangs
from hetero_airflow.scheduling.garbage_collection import deferred_garbage_collection
from hetero_airflow.scheduling.ownership import owned_decisions
from hetero_airflow.scheduling.pending_events import RequestEvent, with_pending_events
from hetero_airflow.scheduling.reaper import reap
from hetero_airflow.scheduling.unresponsive_schedulers import UnresponsiveSchedulers
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.store.store import CommitResult, LeaseMove, RequestSubmitted, Store

log = logging.getLogger(__name__)

MAX_ROUNDS = 3
"""How often one cycle decides: once, and again while others take what it chose."""


@dataclass(frozen=True, slots=True)
class Undispatched:
    """A lease whose work the engine did not take; it is released, and its request waits again."""

    lease: Lease
    cause: str


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle did."""

    reaped: tuple[Lease, ...] = ()
    """Leases that expired or were taken back, as they are now."""
    plan: Plan = field(default_factory=Plan)
    """The newest decision on each request. If nothing had changed, that of the cycle before."""
    dispatched: tuple[Lease, ...] = ()
    undispatched: tuple[Undispatched, ...] = ()
    preempted: tuple[Lease, ...] = ()
    """Leases whose holders were told to save and end."""
    raced: tuple[str, ...] = ()
    """Ids of requests whose devices others took in every round; they are decided again in the next cycle."""
    is_decided: bool = True
    """False if nothing had changed, so that the plan of the cycle before still holds."""

    @property
    def waiting(self) -> tuple[Wait, ...]:
        """The requests that wait, in the order of the queue."""
        return tuple(decision for decision in self.plan.decisions if isinstance(decision, Wait))

    @property
    def refused(self) -> tuple[Refuse, ...]:
        """The requests that no known worker can ever run."""
        return tuple(decision for decision in self.plan.decisions if isinstance(decision, Refuse))


@dataclass(frozen=True, slots=True)
class _LastDecision:
    """What the last cycle decided, and on what."""

    snapshot: Snapshot
    ours: frozenset[str]
    slots: int | None
    plan: Plan

    def holds_for(self, snapshot: Snapshot, ours: frozenset[str], slots: int | None, now: datetime) -> bool:
        """Whether a decision now would come out the same."""
        is_old = self.plan.until is not None and now >= self.plan.until
        return not is_old and self.ours == ours and self.slots == slots and _is_unchanged(self.snapshot, snapshot)


def run_cycle(store: Store, policy: Policy, engine: Engine, now: datetime, lease_timeout_s: float) -> CycleResult:
    """One cycle without a memory of the one before.

    :raises StoreUnavailable: the database is down; what was committed by then is also dispatched
    """
    return Cycle(store, policy, engine, lease_timeout_s).run(now)


class Cycle:
    """Cycles over one store; remembers what was decided last, so that nothing is decided twice.

    The engine is asked through its port of five methods. The store, the policy and the engine
    may be real or simulated.

    :param preemptor: who tells tasks to end; None: the policy is told that nothing can be taken back
    :param believed: adds to a snapshot what the store does not know: estimates, rules of preemption, marks of workers;
        a part that did not change is the same object again
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        engine: Engine,
        lease_timeout_s: float,
        *,
        preemptor: Preemptor | None = None,
        policy_context: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    ) -> None:
        self._store = store
        self._policy = policy
        self._engine = engine
        self._preemptor = preemptor
        self._policy_context = policy_context
        self._lease_timeout = timedelta(seconds=lease_timeout_s)
        self._safe: Policy = PriorityPolicy()
        self._decided: _LastDecision | None = None
        self._reach: tuple[tuple[Worker, ...], tuple[Worker, ...]] | None = None
        self._undispatched: dict[str, tuple[Undispatched, PendingRequest]] = {}
        self._stalled = UnresponsiveSchedulers()
        self._warned = ""

    @deferred_garbage_collection()
    def run(self, now: datetime, news: list[RequestEvent] | None = None) -> CycleResult:
        """One pass, in the six steps of the architecture.

        :param news: requests that come and go, of which the store is told together with the plan; those that it has
            taken note of are taken out, also where a later step fails
        :raises StoreUnavailable: the database is down; what was committed by then is also dispatched
        """
        news = [] if news is None else news
        # 1. Reap expired leases. Lost workers are recorded by who drives the cycle, see `reaper.lost_workers`.
        self._take_back(now)
        reaped = reap(self._store, self._engine, self._store.snapshot().leases, now)
        decisions: dict[str, Decision] = {}
        dispatched: list[Lease] = []
        undispatched: list[Undispatched] = []
        preempted: list[Lease] = []
        for number in range(MAX_ROUNDS):
            # 2. Take a snapshot.
            told = tuple(news)
            snapshot = self._seen(told)
            ours = frozenset(pending.id for pending in snapshot.pending if self._engine.is_ours(pending.id))
            last = self._decided
            slots = self._engine.open_slots() if ours else None
            if number == 0 and not told and last is not None and last.holds_for(snapshot, ours, slots, now):
                return CycleResult(reaped, last.plan, is_decided=False)
            # 3. Let the policy decide a plan over all requests; what is not ours, its own scheduler carries out.
            gangs = {pending.id: pending.gang for pending in snapshot.pending if pending.gang}
            whole = self._decide(self._stalled.without(self._within_reach(snapshot), ours, now), now)
            plan = owned_decisions(self._stalled.note(whole, ours, now), ours, slots, gangs)
            decisions |= {decision.request_id: decision for decision in plan.decisions}
            # 4. Commit it; the store refuses what someone else took meanwhile.
            commit = self._store.commit(plan, now, now + self._lease_timeout, told)
            del news[: len(told)]
            # 5. Dispatch what was granted.
            undispatched += self._dispatch(commit, snapshot, ours)
            own = (lease for lease in commit.leases if lease.request_id in ours)
            dispatched += (lease for lease in own if lease.id not in self._undispatched)
            preempted += self._preempt(plan.preemptions, now)
            if not commit.refused:
                break
            self._take_back(now)
        # 6. Leave the rest pending: the store has each reason; what could not be dispatched waits again.
        self._take_back(now)
        period_s = period_of(self._policy)
        if period_s is not None:
            next_at = now + timedelta(seconds=period_s)
            plan = replace(plan, until=next_at if plan.until is None else min(plan.until, next_at))
        self._decided = None if commit.refused else _LastDecision(snapshot, ours, slots, plan)
        return CycleResult(
            reaped,
            Plan(tuple(decisions.values()), plan.preemptions, plan.until),
            tuple(dispatched),
            tuple(undispatched),
            tuple(preempted),
            commit.refused,
        )

    def _seen(self, news: Sequence[RequestEvent]) -> Snapshot:
        """The store's snapshot, with what the store does not know, or not yet."""
        snapshot = self._policy_context(with_pending_events(self._store.snapshot(), news))
        return snapshot if self._preemptor is None else replace(snapshot, can_preempt=True)

    def _within_reach(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without the workers that the engine can't run anything on."""
        if self._reach is None or self._reach[0] is not snapshot.workers:
            near = tuple(worker for worker in snapshot.workers if self._engine.reaches(worker.id))
            self._reach = (snapshot.workers, near if len(near) < len(snapshot.workers) else snapshot.workers)
        near = self._reach[1]
        return snapshot if near is snapshot.workers else replace(snapshot, workers=near)

    def _decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """The policy's plan, or where it has none that can be used, the safe policy's."""
        try:
            plan = self._policy.decide(snapshot, now)
            faults = plan_faults(snapshot, plan)
            cause = f"its plan does not fit: {'; '.join(faults[:3])}" if faults else ""
        except Exception as error:  # noqa: BLE001  a policy from another package may raise anything
            cause = f"it raised {type(error).__name__}: {error}"
        if not cause:
            self._warned = ""
            return plan
        if cause != self._warned:
            log.warning("Policy %s is passed over, %s. The policy priority decides.", _policy_name(self._policy), cause)
        self._warned = cause
        return self._safe.decide(snapshot, now)

    def _dispatch(self, commit: CommitResult, snapshot: Snapshot, ours: Set[str]) -> list[Undispatched]:
        """Hand over the work of the leases; those that the engine did not take are noted for `_take_back`.

        Members of a gang that another scheduler has, that one hands over.
        """
        if not commit.leases:
            return []
        pending = {one.id: one for one in snapshot.pending}
        failed = []
        torn = {lease.id for lease in partially_granted_gangs(commit.leases, commit.refused, pending)}
        for lease in commit.leases:
            if lease.id in torn:
                failed.append(Undispatched(lease, "not dispatched: others took a device of its gang meanwhile"))
                self._undispatched[lease.id] = (failed[-1], pending[lease.request_id])
                continue
            if lease.request_id not in ours:
                continue
            try:
                self._engine.dispatch(lease)
            except Exception as error:  # noqa: BLE001  engines are foreign code; one task must not stop the others
                cause = f"not dispatched: {type(error).__name__}: {error}"
                log.warning("Lease %s is released and its request waits again, %s", lease.id, cause)
                failed.append(Undispatched(lease, cause))
                self._undispatched[lease.id] = (failed[-1], pending[lease.request_id])
        return failed

    def _preempt(self, preemptions: Iterable[Preempt], now: datetime) -> list[Lease]:
        """Tell the holders of leases to save and end; another scheduler's are left to it."""
        told: list[Lease] = []
        own = [one for one in preemptions if self._preemptor is not None and self._engine.is_ours(one.request_id)]
        moves = [LeaseMove(one.lease_id, one.token, LeaseState.PREEMPTED, one.cause) for one in own]
        for preempt, outcome in zip(own, self._store.move(moves, now), strict=True):
            if not isinstance(outcome, Lease):
                log.debug("A lease that was to be preempted had ended already: %s", outcome)
                continue
            assert self._preemptor is not None
            try:
                self._preemptor.preempt(outcome, preempt.cause)
            except Exception as error:  # noqa: BLE001  engines are foreign code; the lease stays marked as preempted
                log.warning("The holder of lease %s could not be told to end: %s", outcome.id, error)
                continue
            told.append(outcome)
        return told

    def _take_back(self, now: datetime) -> None:
        """Release what was not dispatched and let it wait again; where the store is down, in the next cycle."""
        if not self._undispatched:
            return
        moves = [
            LeaseMove(id_, f.lease.token, LeaseState.RELEASED, f.cause) for id_, (f, _) in self._undispatched.items()
        ]
        for outcome in self._store.move(moves, now):
            if isinstance(outcome, StoreError):
                log.debug("A lease that was not dispatched had ended already: %s", outcome)
        self._store.record([RequestSubmitted(pending) for _, pending in self._undispatched.values()], now)
        self._undispatched.clear()


def _is_unchanged(before: Snapshot, after: Snapshot) -> bool:
    """Whether a policy would see the same; that leases were renewed changes nothing for it.

    Stores hand out the same object for a part that did not change; another one is taken as changed. What waits is
    compared, since it may have been seen before the store had it.
    """
    return (before.sequence == after.sequence and before.estimates is after.estimates) or (
        before.workers is after.workers
        and before.usage is after.usage
        and before.pending == after.pending
        and before.dag_tokens == after.dag_tokens
        and before.estimates is after.estimates
        and _spared_leases(before) == _spared_leases(after)
    )


def _spared_leases(snapshot: Snapshot) -> int:
    """How many leases are spared: with the first checkpoint of its task, one may be taken back."""
    return sum(map(snapshot.is_protected, snapshot.leases)) if snapshot.protects_unsaved else 0


def _policy_name(policy: Policy) -> str:
    return str(getattr(policy, "name", type(policy).__name__))
