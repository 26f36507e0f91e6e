"""The algorithm that the simple policies share: list scheduling with a reservation for the head.

The queue is walked in the policy's order and each request is placed where it fits best. The first
that must wait for running work is the head: something is kept free for it, and later requests may only
be placed beside that; see `reservation.py`, and `walk.py` for the walk.

The members of a gang stand in the queue where the first of them stands, and are placed all at once or not at
all. A gang of which members are missing stands behind the queue: nothing is kept for it, and it holds nothing.

Requests that no present worker could serve even if it were idle (lost, unwell, or impossible) stand
behind the queue: nothing that runs is in their way, so nothing is kept for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hetero_airflow.matching.gangs.idle_cluster import IdleCluster
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import PlacementScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Account, Decision, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.gang_queue import GangQueue, group_by_gang
from hetero_airflow.policies.core.list_scheduler import ListScheduler, MayOvertake, WaitExplanations
from hetero_airflow.policies.core.reservation import (
    MakePreemptionPlan,
    MakeReservations,
    NoPreemption,
    ReservationsByNeed,
)
from hetero_airflow.policies.core.topology_wait_budget import apply_topology_wait_budgets

QueueOrder = Callable[[Iterable[PendingRequest], Snapshot], list[PendingRequest]]
"""The plug-in point: the requests as a queue. Total: no two orders of one input."""


class ListPolicy:
    """A policy made of an order, a placement, and what happens beside a request that waits.

    Pure: what it remembers changes no answer.

    :param reserve: what is kept for those that wait
    :param make_room: which leases are taken back for them
    """

    def __init__(
        self,
        name: str,
        order: QueueOrder,
        placement: PlacementScorer,
        may_pass: MayOvertake = lambda pending, head: True,
        *,
        reserve: MakeReservations = ReservationsByNeed,
        make_room: MakePreemptionPlan = NoPreemption,
    ) -> None:
        self.name = name
        self._order = order
        self._may_pass = may_pass
        self._reserve = reserve
        self._make_room = make_room
        self._matcher = Matcher(placement)
        self._fleet: WorkerIndex | None = None
        self._ground: IdleCluster | None = None
        self._answers: WaitExplanations = {}

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return Plan(tuple(self._without_workers(snapshot)))
        return self._place(snapshot, self._look(snapshot), self._order, self._may_pass, now)

    def _look(self, snapshot: Snapshot) -> WorkerIndex:
        """The workers of the snapshot, as they are before anything is placed on them; valid until the next look."""
        if self._fleet is None:
            self._fleet = WorkerIndex(self._matcher, snapshot)
        else:
            self._fleet.see(snapshot)
        return self._fleet

    def _place(
        self, snapshot: Snapshot, fleet: WorkerIndex, order: QueueOrder, may_pass: MayOvertake, now: datetime
    ) -> Plan:
        """The walk over the queue of this order."""
        if self._ground is None or self._ground.entries != fleet.entries:
            self._ground = IdleCluster(fleet.entries, fleet.matcher)
        asked = apply_topology_wait_budgets(snapshot.pending, now, fleet.is_servable, self._ground.fits_when_idle)
        gangs = GangQueue(snapshot, asked.pending, fleet, self._ground, now)
        reservation, room = self._reserve(fleet, snapshot, now), self._make_room(fleet, snapshot, now)
        walk = ListScheduler(self.name, fleet, gangs, may_pass, reservation, room, now, asked.until, self._answers)
        ready: list[PendingRequest] = []
        blocked: list[PendingRequest] = []
        for pending in asked.pending:
            (ready if walk.is_ready(pending) else blocked).append(pending)
        for unit in group_by_gang([*order(ready, snapshot), *order(blocked, snapshot)]):
            walk.step(unit)
        self._answers = walk.answers
        until = min((at for at in (walk.until, room.until) if at is not None), default=None)
        return Plan(tuple(walk.decisions), tuple(room.preemptions()), until)

    def _without_workers(self, snapshot: Snapshot) -> Iterable[Decision]:
        account = Account(self.name, "waits for a first worker")
        for position, pending in enumerate(self._order(snapshot.pending, snapshot), start=1):
            reason = Reason(ReasonCode.NO_WORKER, str(pending.request), "no worker yet")
            yield Wait(pending.id, position, reason, account)
