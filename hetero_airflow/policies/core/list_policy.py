"""The base of most policies: list scheduling with a reservation for the head of the queue.

The list scheduler goes through the queue in the order of the policy and places each request where it fits best. The
first request that must wait for running work is the head. Capacity is reserved for it (`backfill`), and later
requests are placed only beside that.

The members of a gang stand together in the queue, at the place of the first. They are placed all at once or not at all.

Requests that can't be placed even on idle workers come last: gangs with missing members, and requests that no current
worker could run. Running work is not in their way, so nothing is reserved for them.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.matching.gangs.placement import IdleCluster
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import PlacementScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Account, Decision, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.backfill import HeadReservation, MakeReservations
from hetero_airflow.policies.core.data_hosts import DataHosts
from hetero_airflow.policies.core.gang_queue import GangQueue, group_by_gang
from hetero_airflow.policies.core.list_scheduler import ListScheduler, MayOvertake, WaitExplanations
from hetero_airflow.policies.core.preemption import MakePreemptionPlan, NoPreemption, PreemptionPlan
from hetero_airflow.policies.core.topology_wait_budget import apply_topology_wait_budgets

QueueOrder = Callable[[Iterable[PendingRequest], Snapshot], list[PendingRequest]]
"""The plug-in point: the requests as a queue. Total: one input has one order."""


class ListPolicy:
    """A policy made of an order, a scorer, reservations and preemption.

    Pure: what it caches changes no decision.
    """

    def __init__(
        self,
        name: str,
        order: QueueOrder,
        scorer: PlacementScorer,
        may_overtake: MayOvertake | None = None,
        *,
        reservations: MakeReservations = HeadReservation,
        preemption: MakePreemptionPlan | None = None,
    ) -> None:
        self.name = name
        self._order = order
        self._may_overtake = may_overtake
        self._make_reservations = reservations
        self._make_preemption_plan = preemption
        self._matcher = Matcher(scorer)
        self._index: WorkerIndex | None = None
        self._idle_cluster: IdleCluster | None = None
        self._explanations: WaitExplanations = {}

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return Plan(tuple(self._wait_for_first_worker(snapshot)))
        scorer = self._scorer_for(snapshot)
        if scorer is not self._matcher.scorer:
            self._matcher, self._index, self._idle_cluster, self._explanations = Matcher(scorer), None, None, {}
        return self._plan(snapshot, self._indexed(snapshot), now)

    def _scorer_for(self, snapshot: Snapshot) -> PlacementScorer:
        """What rates placements; the same object while nothing changes that it depends on."""
        return self._matcher.scorer

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        """The plan for a snapshot with workers."""
        return self._schedule(snapshot, index, self._order, self._may_overtake, now)

    def _indexed(self, snapshot: Snapshot) -> WorkerIndex:
        """The workers of the snapshot before anything is placed on them; valid until the next call."""
        if self._index is None:
            self._index = WorkerIndex(self._matcher, snapshot)
        else:
            self._index.update(snapshot)
        return self._index

    def _schedule(
        self,
        snapshot: Snapshot,
        index: WorkerIndex,
        order: QueueOrder,
        may_overtake: MayOvertake | None,
        now: datetime,
        make_preemption_plan: MakePreemptionPlan | None = None,
    ) -> Plan:
        """The plan of one pass of the list scheduler over the queue in this order.

        :param make_preemption_plan: None: that of the policy
        """
        if self._idle_cluster is None or self._idle_cluster.entries != index.entries:
            self._idle_cluster = IdleCluster(index.entries, index.matcher)
        budgets = apply_topology_wait_budgets(
            snapshot.pending, now, index.is_servable, self._idle_cluster.fits_when_idle
        )
        gangs = GangQueue(snapshot, budgets.pending, index, self._idle_cluster, now)
        reservations = self._make_reservations(index, snapshot, now)
        preemption: PreemptionPlan = NoPreemption()
        make_plan = make_preemption_plan or self._make_preemption_plan
        if snapshot.can_preempt and make_plan is not None:
            preemption = make_plan(index, snapshot, now)
        scheduler = ListScheduler(
            self.name, index, gangs, may_overtake, reservations, preemption, DataHosts(index, snapshot.held_data), now,
            budgets.until, self._explanations,
        )  # fmt: skip
        ready: list[PendingRequest] = []
        blocked: list[PendingRequest] = []
        for pending in budgets.pending:
            (ready if scheduler.could_run_when_idle(pending) else blocked).append(pending)
        for unit in group_by_gang([*order(ready, snapshot), *order(blocked, snapshot)]):
            scheduler.schedule_next(unit)
        self._explanations = scheduler.explanations
        until = min((at for at in (scheduler.until, preemption.until) if at is not None), default=None)
        return Plan(tuple(scheduler.decisions), tuple(preemption.preemptions()), until)

    def _wait_for_first_worker(self, snapshot: Snapshot) -> Iterable[Decision]:
        account = Account(self.name, "waits for a first worker")
        for position, pending in enumerate(self._order(snapshot.pending, snapshot), start=1):
            reason = Reason(ReasonCode.NO_WORKER, str(pending.request), "no worker yet")
            yield Wait(pending.id, position, reason, account)
