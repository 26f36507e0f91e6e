"""One scheduling cycle: reap, take a snapshot, decide, commit, dispatch, keep the rest pending."""

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hetero_airflow.engines.engine import Engine, Preemptor
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Plan, Reason, Refuse
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.policies.policy import Policy, period_of
from hetero_airflow.scheduling.dispatching import LeaseDispatch
from hetero_airflow.scheduling.hardware_wait import with_hardware_waits
from hetero_airflow.scheduling.ownership import owned_decisions, with_starter
from hetero_airflow.scheduling.pending_events import RequestEvent, with_pending_events
from hetero_airflow.scheduling.reaper import reap
from hetero_airflow.scheduling.unresponsive_schedulers import UnresponsiveSchedulers
from hetero_airflow.scheduling.validation import ValidatedPolicy
from hetero_airflow.store.store import CommitResult, Store

_ENDING = timedelta(seconds=30)
"""For so long the lease of an ended task counts as about to be free. Its processes are gone within some seconds; after
that time something keeps them, and the task's devices are not counted on any more."""

MAX_ROUNDS = 3
"""A cycle decides once, and again while other schedulers take the devices that it chose."""


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle did."""

    plan: Plan = field(default_factory=Plan)
    """The newest decision on each request. If nothing changed, the plan of the cycle before."""
    dispatched: tuple[Lease, ...] = ()
    raced: tuple[str, ...] = ()
    """Ids of requests whose chosen devices went to other schedulers in each round. The next cycle decides on them."""
    is_decided: bool = True
    """False if nothing changed, so that the plan of the cycle before still holds."""
    recorded: int = 0
    """How many of the pending events the store has recorded, counted from the first one."""

    @property
    def refused(self) -> tuple[Refuse, ...]:
        """The requests that no known worker can ever run."""
        return tuple(decision for decision in self.plan.decisions if isinstance(decision, Refuse))


class CycleInterrupted(Exception):
    """A cycle failed. Placements that were committed before are dispatched."""

    def __init__(self, cause: Exception, recorded: int) -> None:
        self.cause = cause
        """The error of the step: `StoreUnavailable` for an outage of the database."""
        self.recorded = recorded
        """As in `CycleResult`."""
        super().__init__(str(cause))


@dataclass(frozen=True, slots=True)
class _View:
    """The input of one decision."""

    snapshot: Snapshot
    owned_ids: frozenset[str]
    """Pending requests of this scheduler."""
    slots: int | None
    """How many placements the engine could start at once; None for any number."""
    obstacle: Reason | None
    """Why nothing can start now."""

    def is_equivalent(self, earlier: "_View") -> bool:
        """Whether a policy decides the same on both. Renewed leases make no difference."""
        return (
            self.owned_ids == earlier.owned_ids
            and self.slots == earlier.slots
            and self.obstacle == earlier.obstacle
            and _is_unchanged(earlier.snapshot, self.snapshot)
        )


@contextmanager
def deferred_garbage_collection() -> Iterator[None]:
    """Python's cyclic garbage collector runs after the block, not within it.

    A cycle makes a decision for each request, and all decisions live until the next cycle. A collection within a cycle
    visits all objects of the process, frees nothing, and delays the start of placed tasks.
    Measured with 1,000 workers and 10,000 waiting requests (200,000 objects): 100 to 200 ms every fifth cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Cycle:
    """Runs cycles over one store. It remembers its last plan, and does not decide again while nothing changes.

    The store, the policy and the engine may be real or simulated.

    :param preemptor: tells tasks to end; None: the policy learns that nothing can be preempted
    :param policy_context: adds to a snapshot what the store does not know: estimates, rules of preemption, marks of
        workers; a part that did not change is the same object again
    :param obstacle: why nothing can start now, whatever is free; None if tasks can start
    :param starter: the id of this scheduler, which starts the tasks that wait with it
    :param ended_since: (request ids, time) → those of them whose tasks have ended since then. Their leases last until
        their processes are gone, and nothing is preempted for what they give back
    :param hardware_deadline: request id → until when it waits for a worker that could run it; None: it does not
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        engine: Engine,
        lease_timeout_s: float,
        *,
        starter: str = "",
        preemptor: Preemptor | None = None,
        policy_context: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        obstacle: Callable[[], Reason | None] = lambda: None,
        ended_since: Callable[[Collection[str], datetime], Collection[str]] = lambda request_ids, since: (),
        hardware_deadline: Callable[[str], datetime | None] = lambda request_id: None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._policy = ValidatedPolicy(policy)
        self._period_s = period_of(policy)
        self._can_preempt = preemptor is not None
        self._starter = starter
        self._add_policy_context = policy_context
        self._obstacle = obstacle
        self._ended_since = ended_since
        self._hardware_deadline = hardware_deadline
        self._lease_timeout = timedelta(seconds=lease_timeout_s)
        self._dispatch = LeaseDispatch(store, engine, preemptor)
        self._unresponsive = UnresponsiveSchedulers()
        self._last: tuple[_View, Plan] | None = None
        self._reachable: tuple[tuple[Worker, ...], tuple[Worker, ...]] = ((), ())
        """The workers of the last snapshot, and those among them that the engine reaches."""

    @deferred_garbage_collection()
    def run(self, now: datetime, pending_events: Sequence[RequestEvent] = ()) -> CycleResult:
        """One cycle, in six steps.

        :param pending_events: new and withdrawn requests, which the store records together with the plan. The caller
            removes the recorded ones. It may append others while the cycle runs: the next round reads them
        :raises CycleInterrupted: a step failed. It has the cause, and the number of recorded events
        """
        done = CycleResult()  # what the cycle has done so far
        try:
            self._reap(now)  # 1
            for round_number in range(MAX_ROUNDS):
                events = tuple(pending_events[done.recorded :])
                view = self._take_snapshot(events)  # 2
                last_plan = self._plan_that_still_holds(view, now) if round_number == 0 and not events else None
                if last_plan is not None:
                    return replace(done, plan=last_plan, is_decided=False)
                plan = self._decide(view, now)  # 3
                plan = with_starter(plan, view.owned_ids, self._starter)
                commit, done = self._commit(plan, events, now, done)  # 4
                done = self._carry_out(plan, commit, view, now, done)  # 5
                if not commit.raced:  # no other scheduler took a chosen device
                    break
            return self._keep_rest_pending(plan, view, now, done)  # 6
        except Exception as error:
            raise CycleInterrupted(error, done.recorded) from error

    def _reap(self, now: datetime) -> None:
        """Step 1: expire leases. The caller of the cycle records lost workers, see `reaper.lost_workers`."""
        self._dispatch.requeue_undispatched(now)  # those of the last cycle, if the store was down
        reap(self._store, self._engine, self._store.snapshot().leases, now)

    def _take_snapshot(self, events: Sequence[RequestEvent]) -> _View:
        """Step 2: the store's snapshot, with the pending events and with the policy context."""
        snapshot = self._add_policy_context(with_pending_events(self._store.snapshot(), events))
        if self._can_preempt:
            snapshot = replace(snapshot, can_preempt=True)
        owned_ids = frozenset(pending.id for pending in snapshot.pending if self._engine.is_ours(pending.id))
        return _View(snapshot, owned_ids, self._engine.open_slots() if owned_ids else None, self._obstacle())

    def _plan_that_still_holds(self, view: _View, now: datetime) -> Plan | None:
        """The last plan, if a new decision would be the same; else None."""
        if self._last is None:
            return None
        last_view, plan = self._last
        is_outdated = plan.until is not None and now >= plan.until
        return None if is_outdated or not view.is_equivalent(last_view) else plan

    def _decide(self, view: _View, now: datetime) -> Plan:
        """Step 3: the policy's plan over all requests, without the decisions that other schedulers carry out."""
        snapshot = self._with_reachable_workers(view.snapshot)
        snapshot = self._unresponsive.without_suspended(snapshot, view.owned_ids, now)
        plan = self._policy.decide(snapshot, now)
        if plan.preemptions:
            plan = self._decide_with_ending_leases(plan, snapshot, now)
        gangs = {pending.id: pending.gang for pending in view.snapshot.pending if pending.gang}
        observed = self._unresponsive.observe(plan, view.owned_ids, now)
        observed = with_hardware_waits(observed, snapshot.pending, view.snapshot.workers, self._hardware_deadline, now)
        return owned_decisions(observed, view.owned_ids, view.slots, gangs, view.obstacle)

    def _decide_with_ending_leases(self, plan: Plan, snapshot: Snapshot, now: datetime) -> Plan:
        """The plan, or another one if tasks have just ended whose leases last a moment longer.

        The policy sees these leases as taken back already, so a request waits for them where it fits there.
        """
        ended = self._ended_since({lease.request_id for lease in snapshot.leases}, now - _ENDING)
        if not ended:
            return plan
        holders = {id_: holder for id_, holder in snapshot.holders.items() if id_ not in ended}  # they need no others
        lease_ids = {lease.id for lease in snapshot.leases if lease.request_id in ended}
        snapshot = replace(snapshot, holders=holders).with_preempted(lease_ids)
        plan = self._policy.decide(snapshot, now)
        again_at = now + _ENDING
        return replace(plan, until=again_at if plan.until is None else min(plan.until, again_at))

    def _commit(
        self, plan: Plan, events: Sequence[RequestEvent], now: datetime, done: CycleResult
    ) -> tuple[CommitResult, CycleResult]:
        """Step 4: the store records the events and the plan, and refuses devices that others took meanwhile."""
        commit = self._store.commit(plan, now, now + self._lease_timeout, events)
        decisions = {decision.request_id: decision for decision in (*done.plan.decisions, *plan.decisions)}
        merged = replace(plan, decisions=tuple(decisions.values()))
        return commit, replace(done, plan=merged, raced=commit.raced, recorded=done.recorded + len(events))

    def _carry_out(
        self, plan: Plan, commit: CommitResult, view: _View, now: datetime, done: CycleResult
    ) -> CycleResult:
        """Step 5: dispatch the granted leases, and tell the holders of preempted ones to end."""
        dispatched = self._dispatch.start(commit, view.snapshot, view.owned_ids)
        self._dispatch.preempt(plan.preemptions, now)
        self._dispatch.requeue_undispatched(now)
        return replace(done, dispatched=(*done.dispatched, *dispatched))

    def _keep_rest_pending(self, plan: Plan, view: _View, now: datetime, done: CycleResult) -> CycleResult:
        """Step 6: the other requests wait; the store has their reasons. Remember the plan for the next cycle."""
        if self._period_s is not None:
            next_at = now + timedelta(seconds=self._period_s)
            plan = replace(plan, until=next_at if plan.until is None else min(plan.until, next_at))
        self._last = None if done.raced else (view, plan)
        return replace(done, plan=replace(done.plan, until=plan.until))

    def _with_reachable_workers(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without the workers on which the engine can't run anything."""
        workers = snapshot.workers
        if self._reachable[0] is not workers:
            reachable = tuple(worker for worker in workers if self._engine.reaches(worker.id))
            self._reachable = (workers, reachable if len(reachable) < len(workers) else workers)
        reachable = self._reachable[1]
        return snapshot if reachable is workers else replace(snapshot, workers=reachable)


def _is_unchanged(before: Snapshot, after: Snapshot) -> bool:
    """Whether a policy sees the same.

    Stores return the same object for a part that did not change; any other object counts as a change. Pending requests
    are compared, since an earlier snapshot may have had them from the pending events.
    """
    return (before.sequence == after.sequence and before.estimates is after.estimates) or (
        before.workers is after.workers
        and before.usage is after.usage
        and before.pending == after.pending
        and before.dag_tokens == after.dag_tokens
        and before.estimates is after.estimates
        and _protected_leases(before) == _protected_leases(after)
    )


def _protected_leases(snapshot: Snapshot) -> int:
    """How many leases are protected. A task is protected until its first checkpoint; then it may be preempted."""
    return sum(map(snapshot.is_protected, snapshot.leases)) if snapshot.protects_unsaved else 0
