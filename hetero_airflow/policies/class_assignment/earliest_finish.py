"""The base of policies made of an order: in it, each request goes to the device class on which it finishes earliest.

The processor selection of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1), decided again at each
change. Deviations: a processor is as many devices of one class on one worker as the request needs; nothing is inserted
before an earlier placement, because a later decision may do so; requests for several kinds of devices, shares and gangs
are placed where they fit best. A request may wait although it fits somewhere, if faster devices are free soon enough.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Decision, Place, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.candidates import (
    OVERDUE,
    AssignmentProblem,
    Candidate,
    PlacementOption,
    assignment_problem,
)
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder

MAX_CHOICES = 1000
"""The finish time is computed for this many requests at the front of the queue; others are placed where they fit."""


class EarliestFinish(ListPolicy):
    """A policy made of an order; see the module."""

    def __init__(self, name: str, order: QueueOrder) -> None:
        super().__init__(name, order, TightFitScorer())

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        choices = self._choose(snapshot, index, now)
        pending = tuple(choices[p.id].option.narrow(p) if p.id in choices else p for p in snapshot.pending)
        plan = self._schedule(replace(snapshot, pending=pending), index, self._order, self._may_overtake, now)
        return replace(plan, decisions=tuple(_as_requested(decision, choices) for decision in plan.decisions))

    def _choose(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Mapping[str, ClassChoice]:
        """Request id → its class, for the requests for which the class makes a difference."""
        problem = assignment_problem(replace(snapshot, can_preempt=True), index, now)
        times = FinishTimes(problem, {entry.worker.id: number for number, entry in enumerate(index.entries)})
        waiting = {candidate.pending.id: candidate for candidate in problem.candidates if candidate.lease is None}
        choices: dict[str, ClassChoice] = {}
        queue = (waiting[p.id] for p in self._order(snapshot.pending, snapshot) if p.id in waiting)
        for candidate, _ in zip(queue, range(MAX_CHOICES), strict=False):
            choice = times.take(candidate)
            if choice is not None and candidate.is_exact and len(set(candidate.speeds.values())) > 1:
                choices[candidate.pending.id] = choice
        return choices


def _as_requested(decision: Decision, choices: Mapping[str, ClassChoice]) -> Decision:
    """The decision over the request as the user made it, where the scheduler saw only one class of it."""
    choice = choices.get(decision.request_id)
    if choice is None:
        return decision
    if isinstance(decision, Place):
        return decision._replace(alternative=choice.option.alternative)
    if isinstance(decision, Wait) and decision.reason.code is ReasonCode.BUSY and choice.is_ready_elsewhere:
        reason_text = f"an earlier end on {choice.name}, free in {choice.ready_s:.0f} s"
        return decision._replace(reason=Reason(ReasonCode.SOONER, decision.reason.asked, reason_text))
    return decision


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The class of devices on which a request is expected to finish earliest."""

    option: PlacementOption
    name: str
    ready_s: float
    """Seconds until enough of its devices are free on one worker."""
    is_ready_elsewhere: bool
    """Whether the request could start on another class at once."""


class FinishTimes:
    """The devices of an assignment problem, each with the seconds until it is expected to be free.

    A run about which nothing is known is expected to last a mean run, and some time longer if it has lasted that long.

    :param numbers: worker id → its number in the index
    """

    def __init__(self, problem: AssignmentProblem, numbers: Mapping[str, int]) -> None:
        self._mean_run_s = problem.mean_run_s
        self._times: dict[str, dict[int, list[float]]] = {name: {} for name in problem.free}
        """Class → worker → the times of its devices, ascending."""
        for by_class in (problem.free, problem.ending):
            for name, workers in by_class.items():
                for worker, devices in workers.items():
                    self._times[name].setdefault(worker, []).extend([0.0] * devices)
        for candidate in problem.candidates:
            if candidate.current is not None and candidate.lease is not None:
                left_s = self._left_s(candidate) / max(candidate.speeds[candidate.current], 1e-9)
                times = self._times[candidate.current].setdefault(numbers[candidate.lease.worker_id], [])
                times.extend([left_s] * candidate.count)
        for by_worker in self._times.values():
            for times in by_worker.values():
                times.sort()
        self._first: dict[tuple[str, int], list[tuple[float, int]]] = {}
        """(class, number of devices) → heap of (when this number is free, worker); an entry may be out of date."""

    def take(self, candidate: Candidate) -> ClassChoice | None:
        """Give the request the devices on which it finishes earliest; None if it can't finish."""
        left_s = self._mean_run_s if candidate.left_s is None else candidate.left_s
        ready = {name: self._ready(name, candidate.count) for name in sorted(candidate.options)}
        ends = {
            name: at + left_s / candidate.speeds[name]
            for name, (at, _) in ready.items()
            if candidate.speeds[name] > 0 and at < math.inf
        }
        if not ends:
            return None
        name = min(ends, key=lambda name: (ends[name], -candidate.speeds[name], name))
        at, worker = ready[name]
        times = self._times[name][worker]
        del times[: candidate.count]
        for _ in range(candidate.count):
            insort(times, ends[name])
        for (class_name, count), first in self._first.items():
            if class_name == name and count <= len(times):
                heapq.heappush(first, (times[count - 1], worker))
        elsewhere = any(class_name != name and ready[class_name][0] <= 0 for class_name in ends)
        return ClassChoice(candidate.options[name], name, at, elsewhere)

    def _ready(self, name: str, count: int) -> tuple[float, int]:
        """When this number of devices of one worker is free, and which worker; ties go to the first worker."""
        by_worker = self._times[name]
        first = self._first.get((name, count))
        if first is None:
            first = [(times[count - 1], worker) for worker, times in by_worker.items() if len(times) >= count]
            heapq.heapify(first)
            self._first[name, count] = first
        while first and by_worker[first[0][1]][count - 1] != first[0][0]:
            heapq.heappop(first)
        return first[0] if first else (math.inf, 0)

    def _left_s(self, candidate: Candidate) -> float:
        if candidate.left_s is not None:
            return candidate.left_s
        return max(self._mean_run_s - candidate.done_s, OVERDUE * candidate.done_s)
