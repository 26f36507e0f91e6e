"""The base of policies made of an order: in it, each request goes to the device class on which it finishes earliest.

The processor selection of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1), decided again at each
change. Deviations: a processor is as many devices of one class on one worker as the request needs; nothing is inserted
before an earlier placement, because a later decision may do so; requests for several kinds of devices, shares and gangs
are placed where they fit best. A request may wait although it fits somewhere, if faster devices are free soon enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Decision, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.candidates import (
    Candidate,
    PlacementOption,
    as_requested,
    assignment_problem,
    narrowed,
)
from hetero_airflow.policies.class_assignment.free_times import MAX_CHOICES, FreeTimes
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder


class EarliestFinish(ListPolicy):
    """A policy made of an order; see the module."""

    def __init__(self, name: str, order: QueueOrder) -> None:
        super().__init__(name, order, TightFitScorer())

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        choices = self._choose(snapshot, index, now)
        options = {request_id: (choice.option,) for request_id, choice in choices.items()}
        plan = self._schedule(narrowed(snapshot, options), index, self._order, self._may_overtake, now)
        plan = as_requested(plan, options)
        return replace(plan, decisions=tuple(_explained(decision, choices) for decision in plan.decisions))

    def _choose(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> "Mapping[str, _Choice]":
        """Request id → its class, for the requests for which the class makes a difference."""
        problem = assignment_problem(replace(snapshot, can_preempt=False), index, now)
        times = FreeTimes(problem, snapshot, index, now)
        waiting = {candidate.pending.id: candidate for candidate in problem.candidates}
        choices: dict[str, _Choice] = {}
        queue = (waiting[p.id] for p in self._order(snapshot.pending, snapshot) if p.id in waiting)
        for candidate, _ in zip(queue, range(MAX_CHOICES), strict=False):
            choice = _take(candidate, times, problem.mean_run_s)
            if choice is not None and candidate.is_exact and len(set(candidate.speeds.values())) > 1:
                choices[candidate.pending.id] = choice
        return choices


@dataclass(frozen=True, slots=True)
class _Choice:
    """The class of devices on which a request is expected to finish earliest."""

    option: PlacementOption
    name: str
    ready_s: float
    """Seconds until enough of its devices are free on one worker."""
    is_ready_elsewhere: bool
    """Whether the request could start on another class at once."""


def _take(candidate: Candidate, times: FreeTimes, mean_run_s: float) -> _Choice | None:
    """Give the request the devices on which it finishes earliest; None if it can't finish."""
    left_s = mean_run_s if candidate.left_s is None else candidate.left_s
    ready = times.ready(candidate)
    if not ready:
        return None
    ends = {name: at + left_s / candidate.speeds[name] for name, (at, _) in ready.items()}
    name = min(ends, key=lambda name: (ends[name], -candidate.speeds[name], name))
    at, worker = ready[name]
    times.occupy(name, worker, candidate.count, ends[name])
    elsewhere = any(other != name and ready[other][0] <= 0 for other in ends)
    return _Choice(candidate.options[name], name, at, elsewhere)


def _explained(decision: Decision, choices: Mapping[str, _Choice]) -> Decision:
    """The decision, with the reason why a request waits although it could start elsewhere."""
    choice = choices.get(decision.request_id)
    if choice is None or not choice.is_ready_elsewhere:
        return decision
    if isinstance(decision, Wait) and decision.reason.code is ReasonCode.BUSY:
        reason_text = f"an earlier end on {choice.name}, free in {choice.ready_s:.0f} s"
        return decision._replace(reason=Reason(ReasonCode.SOONER, decision.reason.asked, reason_text))
    return decision
