"""The base of policies that decide by the weight of each request on each class of devices.

All waiting and running requests compete. The `solver` finds the assignment of requests to classes with the greatest
sum of weights. Then requests that run elsewhere are preempted and waiting requests are placed. A request that one
decision takes off its devices is placed by a later decision, when its new devices are free; the weights are made so
that the later decision comes to the same result. Where leases can't be taken back, only waiting requests compete, for
the free devices.

Requests that the assignment serves come first, each on its class. Then come the others as in `ListPolicy`, which also
reserves devices for the first of them that has to wait. A request that the assignment does not serve never takes
devices that another is about to get.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.request import Priority
from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.candidates import (
    AssignmentProblem,
    Candidate,
    PlacementOption,
    assignment_problem,
)
from hetero_airflow.policies.class_assignment.solver import WAITING, solve_assignment
from hetero_airflow.policies.class_assignment.victims import plan_changes
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder
from hetero_airflow.policies.core.list_scheduler import MayOvertake
from hetero_airflow.policies.core.queue_order import by_priority

CLASS_FACTOR = 16.0
"""A request weighs this many times as much as one of the next lower priority class."""

RESTART_S = 60.0
"""What it takes to go on elsewhere."""

EXPECTED_STAY_RUNS = 0.075
"""How long a request is expected to stay on a class, in mean runs. The restart is lost from that time, for the request
that leaves and for the one that returns. On generated streams of jobs with 1 to 8 devices (seeds 300 to 305), twice
this value saves 0.2 to 0.6 % of the mean JCT and costs a quarter more preemptions; two thirds of it cost 0.3 to 1.1 %
and save a sixth of them."""

_FACTORS = {priority: CLASS_FACTOR**-priority.rank for priority in Priority}

Matrix = NDArray[np.float64]
BoolVector = NDArray[np.bool_]


class Weight(Protocol):
    """The plug-in point: the weight of running a request. Pure."""

    def __call__(self, candidate: Candidate, mean_run_s: float) -> float:
        """The weight on its fastest class, above 0; `mean_run_s` is the mean duration of runs."""
        ...


@dataclass(frozen=True, slots=True)
class _AssignedClasses:
    """The class of each candidate."""

    classes: dict[str, str | None]
    """Request id → device class; None: it is to wait."""
    weights: dict[str, float]


class WeightedAssignment(ListPolicy):
    """A policy made of weights. Pure: what it caches changes no decision.

    :param exponent: on a class where the request runs at relative speed r, it has ``r ** exponent`` of its weight
    """

    period_s: float | None = 1800.0
    """Weights change slowly with the time that requests have run and waited."""

    def __init__(self, name: str, weight: Weight, exponent: float) -> None:
        super().__init__(name, by_priority, TightFitScorer())
        self._weight = weight
        self._exponent = exponent

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        return (self._compete if snapshot.can_preempt else self._choose)(snapshot, index, now)

    def _compete(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        """All requests compete: those that the assignment serves come first, each on its class.

        A preemption names the first request that lacks devices of its class as its beneficiary. If that request is
        placed all the same, the preemption names none.
        """
        problem = assignment_problem(snapshot, index, now)
        names = sorted(problem.capacities)
        weights = self._class_weights(problem, names) if problem.candidates else np.empty((0, len(names)))
        is_movable, kept_until = _keep_new_holders(problem, snapshot, now)
        assigned = self._assign(problem, weights[is_movable])
        changes = plan_changes(problem, index, assigned.classes, assigned.weights)
        ids = {pending.id for pending in snapshot.pending}
        to_serve = [candidate for candidate in changes.arriving if candidate.pending.id in ids]
        queue = {candidate.pending.id: rank for rank, candidate in enumerate(to_serve)}
        unassigned = {request_id for request_id, name in assigned.classes.items() if name is None}
        options = {
            candidate.pending.id: candidate.options[name]
            for candidate in to_serve
            if (name := assigned.classes[candidate.pending.id]) is not None
            and candidate.is_exact
            and candidate not in changes.unplaceable
        }
        plan = self._schedule_options(
            snapshot,
            index,
            options,
            lambda pending, _: sorted(by_priority(pending, snapshot), key=lambda p: queue.get(p.id, len(queue))),
            lambda pending, head: pending.id not in unassigned or head.id not in queue,
            now,
        )
        placed = {place.request_id for place in plan.places}
        preemptions = (replace(p, beneficiary=None) if p.beneficiary in placed else p for p in changes.preemptions)
        newcomers = (candidate for candidate in problem.candidates if not candidate.has_run)
        if all(candidate.speeds.get(assigned.classes[candidate.pending.id] or "", 0.0) == 1 for candidate in newcomers):
            kept_until = None  # the next event comes soon enough, and each decision more moves more requests
        until = min((at for at in (plan.until, kept_until) if at is not None), default=None)
        return replace(plan, preemptions=tuple(preemptions), until=until)

    def _choose(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        """No request is moved: priority and age decide who goes first, the assignment chooses among free devices.

        It chooses for the requests that are placed before the first one that has to wait.
        """
        plan = super()._plan(snapshot, index, now)
        starting = takewhile(lambda decision: isinstance(decision, Place), plan.decisions)
        starting_ids = {decision.request_id for decision in starting}
        if not starting_ids:
            return plan
        placed_ids = {place.request_id for place in plan.places}
        placed = replace(snapshot, pending=tuple(pending for pending in snapshot.pending if pending.id in placed_ids))
        problem = assignment_problem(placed, self._indexed(snapshot), now)
        chosen = [c for c in problem.candidates if c.pending.id in starting_ids and c.is_exact]
        if all(len(set(candidate.speeds.values())) == 1 for candidate in chosen):
            return plan
        problem.restrict_to(chosen, placed_ids - {candidate.pending.id for candidate in chosen})
        classes = self._assign(problem, self._class_weights(problem, sorted(problem.capacities))).classes
        options = {c.pending.id: c.options[name] for c in chosen if (name := classes[c.pending.id]) is not None}
        index = self._indexed(snapshot)
        better = self._schedule_options(snapshot, index, options, self._order, self._may_overtake, now)
        better_ids = {place.request_id for place in better.places}
        is_whole = len(better.places) >= len(plan.places) and starting_ids <= better_ids
        return better if is_whole else plan

    def _schedule_options(
        self,
        snapshot: Snapshot,
        index: WorkerIndex,
        options: Mapping[str, PlacementOption],
        order: QueueOrder,
        may_overtake: MayOvertake | None,
        now: datetime,
    ) -> Plan:
        """The plan of the list scheduler, in which some requests may run only by one option."""
        pending = tuple(options[p.id].narrow(p) if p.id in options else p for p in snapshot.pending)
        plan = self._schedule(replace(snapshot, pending=pending), index, order, may_overtake, now)
        decisions = (
            decision._replace(alternative=options[decision.request_id].alternative)
            if isinstance(decision, Place) and decision.request_id in options
            else decision
            for decision in plan.decisions
        )
        return replace(plan, decisions=tuple(decisions))

    def _class_weights(self, problem: AssignmentProblem, names: list[str]) -> Matrix:
        """The weight of each candidate on each class: ``float [candidates, classes]``, 0 where it can't run."""
        weights = np.array([self._weight(candidate, problem.mean_run_s) for candidate in problem.candidates])
        return weights[:, None] * _speeds(problem, names) ** self._exponent

    def _assign(self, problem: AssignmentProblem, class_weights: Matrix) -> _AssignedClasses:
        """The assignment with the greatest weight, in which a move costs a restart.

        :param class_weights: as from `_class_weights`, one row for each candidate of the problem
        """
        names, candidates = sorted(problem.capacities), problem.candidates
        if not candidates:
            return _AssignedClasses({}, {})
        column = {name: number for number, name in enumerate(names)}
        start = np.array([WAITING if c.current is None else column[c.current] for c in candidates])
        factors = np.array([_FACTORS[candidate.pending.request.priority] for candidate in candidates])
        values = class_weights * factors[:, None]
        weights = values.max(axis=1).tolist()
        stay_s = EXPECTED_STAY_RUNS * problem.mean_run_s
        kept_part = stay_s / (stay_s + RESTART_S)
        is_unmoved = start[:, None] == np.arange(len(names))
        has_run = np.array([candidate.has_run for candidate in candidates])[:, None]
        values *= np.where(is_unmoved, 1 / kept_part, np.where(has_run, kept_part, 1.0))
        values[(values <= 0) | (_speeds(problem, names) <= 0)] = -np.inf
        sizes = np.array([candidate.count for candidate in candidates])
        capacities = np.array([problem.capacities[name] for name in names])
        assigned = solve_assignment(values, sizes, capacities, start).tolist()
        ids = [candidate.pending.id for candidate in candidates]
        classes = [None if number == WAITING else names[number] for number in assigned]
        return _AssignedClasses(dict(zip(ids, classes, strict=True)), dict(zip(ids, weights, strict=True)))


def _keep_new_holders(
    problem: AssignmentProblem, snapshot: Snapshot, now: datetime
) -> tuple[BoolVector, datetime | None]:
    """Take the requests that have not had their minimum run time out of the problem, with their devices.

    Returns which candidates stay in the problem (``bool [candidates]``), and when the first of the others has had its
    time; None if there is no other.

    A higher priority class that waits may take their devices all the same. Without this, requests of several devices
    took turns on one worker within seconds: each decision began where the one before had ended.
    """
    highest = min((pending.request.priority.rank for pending in snapshot.pending), default=len(Priority))

    is_movable, ends = list[bool](), list[datetime]()
    for candidate in problem.candidates:
        lease, pending = candidate.lease, candidate.pending
        if lease is None or candidate.current is None or highest < pending.request.priority.rank:
            is_movable.append(True)
            continue
        restart_s = usual_restart_s(candidate.count) if snapshot.min_run_s and pending.attained_service_s else 0.0
        ends_at = lease.granted_at + timedelta(seconds=snapshot.min_run_s + restart_s)
        is_movable.append(ends_at <= now)
        if ends_at > now:
            ends.append(ends_at)
            problem.capacities[candidate.current] -= candidate.count
    problem.candidates = [c for c, moves in zip(problem.candidates, is_movable, strict=True) if moves]
    return np.array(is_movable, dtype=bool), min(ends, default=None)


def _speeds(problem: AssignmentProblem, names: list[str]) -> Matrix:
    """Relative speed of each candidate on each class, 0 where it can't run: ``float [candidates, classes]``."""
    rows: dict[int, int] = {}
    table: list[list[float]] = []
    row_of = []
    for candidate in problem.candidates:
        row = rows.get(id(candidate.speeds))
        if row is None:
            row = rows[id(candidate.speeds)] = len(table)
            table.append([candidate.speeds.get(name, 0.0) for name in names])
        row_of.append(row)
    return np.array(table)[row_of]
