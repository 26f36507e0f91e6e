"""The algorithm of policies that send each request to where it is expected to finish earliest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Decision, Place, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.candidates import assignment_problem
from hetero_airflow.policies.class_assignment.finish_times import ClassChoice, FinishTimes
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder

MAX_CHOICES = 1000
"""For so many, from the front of the queue, it is worked out where they finish earliest; the others are placed as
they fit."""


class EarliestFinish(ListPolicy):
    """A policy made of an order: in it, each request goes to the class of devices on which it finishes earliest.

    The processor selection of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1), decided anew at
    each change. Deviations: a processor is so many devices of one class on one worker as the request needs;
    nothing is inserted before what was put in earlier, since a later decision may do so; requests for several kinds
    of devices, shares and gangs are placed as they fit. A request may wait although it fits somewhere, where faster
    devices are free soon enough.
    """

    def __init__(self, name: str, order: QueueOrder) -> None:
        super().__init__(name, order, TightFitScorer())

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, in the order of the queue."""
        if not snapshot.workers:
            return super().decide(snapshot, now)
        fleet = self._look(snapshot)
        choices = self._choose(snapshot, fleet, now)
        pending = tuple(choices[one.id].way.narrow(one) if one.id in choices else one for one in snapshot.pending)
        plan = self._place(replace(snapshot, pending=pending), fleet, self._order, self._may_pass, now)
        return replace(plan, decisions=tuple(_as_requested(one, choices) for one in plan.decisions))

    def _choose(self, snapshot: Snapshot, fleet: WorkerIndex, now: datetime) -> Mapping[str, ClassChoice]:
        """Request id → where it goes, of those for which that makes a difference."""
        found = assignment_problem(replace(snapshot, can_preempt=True), fleet, now)
        times = FinishTimes(found, {seat.worker.id: number for number, seat in enumerate(fleet.entries)})
        waiting = {one.pending.id: one for one in found.contenders if one.lease is None}
        choices: dict[str, ClassChoice] = {}
        queue = (waiting[one.id] for one in self._order(snapshot.pending, snapshot) if one.id in waiting)
        for one, _ in zip(queue, range(MAX_CHOICES), strict=False):
            choice = times.take(one)
            if choice is not None and one.is_exact and len(set(one.speeds.values())) > 1:
                choices[one.pending.id] = choice
        return choices


def _as_requested(decision: Decision, choices: Mapping[str, ClassChoice]) -> Decision:
    """The decision in the words of the request as it was made."""
    choice = choices.get(decision.request_id)
    if choice is None:
        return decision
    if isinstance(decision, Place):
        return decision._replace(alternative=choice.way.alternative)
    if isinstance(decision, Wait) and decision.reason.code is ReasonCode.BUSY and choice.is_ready_elsewhere:
        found = f"it to end soonest on {choice.name}, free in {choice.ready_s:.0f} s"
        return decision._replace(reason=Reason(ReasonCode.SOONER, decision.reason.asked, found))
    return decision
