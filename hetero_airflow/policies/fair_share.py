"""Teams have devices by their weights; who has a quota lends what it does not use, and gets it back first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.core.entitlement import Entitlement
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import plan_preemptions
from hetero_airflow.policies.core.queue_order import by_age
from hetero_airflow.policies.core.request_progress import RequestProgress
from hetero_airflow.policies.core.reservation import PreemptionPlan


@dataclass(frozen=True, slots=True)
class _Turns:
    """Whose turn it is in one decision."""

    teams: Entitlement
    turns: dict[str, int]
    """Request id → its place in the queue."""
    above: frozenset[str]
    """Ids of the requests that hold, or would hold, what is above a quota."""

    def order(self, pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        return sorted(pending, key=lambda one: self.turns[one.id])

    def may_pass(self, pending: PendingRequest, head: PendingRequest) -> bool:
        return self.teams.team_of(pending) != self.teams.team_of(head)

    def rank(self, progress: RequestProgress, estimates: Estimates) -> Rank:
        return (float(progress.pending.id in self.above),)


class FairShare(ListPolicy):
    """By the turns of teams, see `Entitlement`, in each by priority; tight placement, backfill by other teams.

    Whoever would hold more than its quota comes last, and gets only what nobody else can use now. Where leases can be
    taken back, those above a quota are, for requests within theirs; the weights alone take nothing back. While a
    team's request is the head, its others don't overtake it: they would use up its team's turn, so that other
    teams could delay the head for ever.
    """

    period_s = 600.0
    """Turns change while work runs."""

    def __init__(self) -> None:
        super().__init__("fair_share", by_age, TightFitScorer(), make_room=self._room)
        self._last: tuple[Snapshot, datetime, _Turns] | None = None

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return super().decide(snapshot, now)
        turns = self._turns(snapshot, now)
        return self._place(snapshot, self._look(snapshot), turns.order, turns.may_pass, now)

    def _turns(self, snapshot: Snapshot, now: datetime) -> _Turns:
        if self._last is None or self._last[0] is not snapshot or self._last[1] != now:
            teams = Entitlement(snapshot, now)
            queue, borrowers = teams.in_order(snapshot.pending)
            turns = {one.id: turn for turn, one in enumerate(queue)}
            self._last = (snapshot, now, _Turns(teams, turns, teams.borrowed | borrowers))
        return self._last[2]

    def _room(self, fleet: WorkerIndex, snapshot: Snapshot, now: datetime) -> PreemptionPlan:
        return plan_preemptions(self.name, PreemptionRules(self._turns(snapshot, now).rank))(fleet, snapshot, now)
