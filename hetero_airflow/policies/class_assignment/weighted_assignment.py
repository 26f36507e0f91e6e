"""The algorithm that policies share which decide by what each request is worth on each class of devices.

All that wait or run compete: an assignment of requests to classes is found in which the sum of their worths is
greatest (`transport`), then what runs where it should not is preempted and what waits is placed. A request that is
taken off its devices in one decision is placed by a later one, when they are free; the worths are made so that
the later decision comes out the same. Where leases can't be taken back, only what waits competes, for what is free.

Requests that the assignment serves come first and each on its class, then the others as by `ListPolicy`, which also
keeps devices free for the first that has to wait for them. What the assignment does not serve never takes
devices that others are about to get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.request import Priority
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
"""How many times as much a request is worth as one of the next lower priority class."""

RESTART_S = 60.0
"""What it takes to go on elsewhere."""

EXPECTED_STAY_RUNS = 0.15
"""For how long one stays there, as far as one can tell, in mean runs: of that time the restart is lost, to who has
to go as to who comes back. On generated streams like Gavel's, half of it costs 0.2 % of the mean JCT and saves a
quarter of the restarts; a tenth of it costs 1.5 %."""

_FACTORS = {priority: CLASS_FACTOR**-priority.rank for priority in Priority}

Matrix = NDArray[np.float64]


class Weight(Protocol):
    """The plug-in point: what it is worth that a request runs. Pure."""

    def __call__(self, one: Candidate, mean_run_s: float) -> float:
        """Of a request on its fastest class, given how long runs are; above 0."""
        ...


@dataclass(frozen=True, slots=True)
class _AssignedClasses:
    """Where each contender is to run."""

    classes: dict[str, str | None]
    """Request id → device class; None: it is to wait."""
    worths: dict[str, float]


class WeightedAssignment(ListPolicy):
    """A policy made of worths. Pure: what it remembers changes no answer.

    :param exponent: a class on which the request runs at relative speed r is worth ``r ** exponent`` of the fastest
    """

    period_s: float | None = 1800.0
    """Worths change slowly with the time that requests have run and waited."""

    def __init__(self, name: str, worth: Weight, exponent: float) -> None:
        super().__init__(name, by_priority, TightFitScorer())
        self._worth = worth
        self._exponent = exponent

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request, and what is preempted for it."""
        if not snapshot.workers:
            return super().decide(snapshot, now)
        return self._compete(snapshot, now) if snapshot.can_preempt else self._choose(snapshot, now)

    def _compete(self, snapshot: Snapshot, now: datetime) -> Plan:
        """All compete: those that the assignment serves come first, each on its class.

        Who leaves makes room for a class; where the first of those who lack it found a place all the same, nobody is
        named as the one who gains.
        """
        fleet = self._look(snapshot)
        found = assignment_problem(snapshot, fleet, now)
        assigned = self._assign(found)
        room = plan_changes(found, fleet, assigned.classes, assigned.worths)
        ids = {one.id for one in snapshot.pending}
        served = [one for one in room.comers if one.pending.id in ids]
        queue = {one.pending.id: rank for rank, one in enumerate(served)}
        held = {i for i, name in assigned.classes.items() if name is None}
        ways = {
            one.pending.id: one.ways[name]
            for one in served
            if (name := assigned.classes[one.pending.id]) is not None and one.is_exact and one not in room.unfit
        }
        plan = self._walk(
            snapshot,
            fleet,
            ways,
            lambda pending, _: sorted(by_priority(pending, snapshot), key=lambda one: queue.get(one.id, len(queue))),
            lambda pending, head: pending.id not in held or head.id not in queue,
            now,
        )
        placed = {one.request_id for one in plan.places}
        preemptions = (replace(one, beneficiary=None) if one.beneficiary in placed else one for one in room.preemptions)
        return replace(plan, preemptions=tuple(preemptions))

    def _choose(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Nobody is moved: who goes first is a matter of priority and age, the assignment chooses among what is free.

        It does so for those that are placed before the first that has to wait.
        """
        first = super().decide(snapshot, now)
        starting = takewhile(lambda one: isinstance(one, Place), first.decisions)
        ids = {one.request_id for one in starting}
        if not ids:
            return first
        starts = {place.request_id for place in first.places}
        few = replace(snapshot, pending=tuple(one for one in snapshot.pending if one.id in starts))
        found = assignment_problem(few, self._look(snapshot), now)
        placed = [one for one in found.contenders if one.pending.id in ids and one.is_exact]
        if all(len(set(one.speeds.values())) == 1 for one in placed):
            return first
        others = starts - {one.pending.id for one in placed}
        taken = Counter[str]()
        for one in found.contenders:
            if one.pending.id in others:
                taken.update(dict.fromkeys(one.ways, one.count))
        found.contenders = placed
        found.capacities = {name: max(0, free - taken[name]) for name, free in found.capacities.items()}
        assigned = self._assign(found)
        ways = {
            one.pending.id: one.ways[name] for one in placed if (name := assigned.classes[one.pending.id]) is not None
        }
        second = self._walk(snapshot, self._look(snapshot), ways, self._order, self._may_pass, now)
        is_whole = len(second.places) >= len(first.places) and ids <= {one.request_id for one in second.places}
        return second if is_whole else first

    def _walk(
        self,
        snapshot: Snapshot,
        fleet: WorkerIndex,
        ways: Mapping[str, PlacementOption],
        order: QueueOrder,
        may_pass: MayOvertake,
        now: datetime,
    ) -> Plan:
        """The walk over the queue in which some requests may only run in one way."""
        pending = tuple(ways[one.id].narrow(one) if one.id in ways else one for one in snapshot.pending)
        plan = self._place(replace(snapshot, pending=pending), fleet, order, may_pass, now)
        decisions = (
            one._replace(alternative=ways[one.request_id].alternative)
            if isinstance(one, Place) and one.request_id in ways
            else one
            for one in plan.decisions
        )
        return replace(plan, decisions=tuple(decisions))

    def _values(self, found: AssignmentProblem, names: list[str]) -> Matrix:
        """What it is worth that each contender runs on each class: ``float [contenders, classes]``, 0 for nothing."""
        worths = np.array([self._worth(one, found.mean_run_s) for one in found.contenders])
        return worths[:, None] * _speeds(found, names) ** self._exponent

    def _assign(self, found: AssignmentProblem) -> _AssignedClasses:
        """The assignment of the greatest worth, in which a move costs what it costs to go on elsewhere."""
        names, everyone = sorted(found.capacities), found.contenders
        if not everyone:
            return _AssignedClasses({}, {})
        column = {name: number for number, name in enumerate(names)}
        start = np.array([WAITING if one.current is None else column[one.current] for one in everyone])
        values = (
            self._values(found, names) * np.array([_FACTORS[one.pending.request.priority] for one in everyone])[:, None]
        )
        worths = values.max(axis=1).tolist()
        stay_s = EXPECTED_STAY_RUNS * found.mean_run_s
        kept = stay_s / (stay_s + RESTART_S)
        stays = start[:, None] == np.arange(len(names))
        has_run = np.array([one.has_run for one in everyone])[:, None]
        values *= np.where(stays, 1 / kept, np.where(has_run, kept, 1.0))
        values[(values <= 0) | (_speeds(found, names) <= 0)] = -np.inf
        sizes = np.array([one.count for one in everyone])
        capacities = np.array([found.capacities[name] for name in names])
        where = solve_assignment(values, sizes, capacities, start).tolist()
        ids = [one.pending.id for one in everyone]
        classes = {i: None if k == WAITING else names[k] for i, k in zip(ids, where, strict=True)}
        return _AssignedClasses(classes, dict(zip(ids, worths, strict=True)))


def _speeds(found: AssignmentProblem, names: list[str]) -> Matrix:
    """Relative speed of each contender on each class, 0 where it can't run: ``float [contenders, classes]``."""
    rows: dict[int, int] = {}
    table: list[list[float]] = []
    which = []
    for one in found.contenders:
        row = rows.get(id(one.speeds))
        if row is None:
            row = rows[id(one.speeds)] = len(table)
            table.append([one.speeds.get(name, 0.0) for name in names])
        which.append(row)
    return np.array(table)[which]
