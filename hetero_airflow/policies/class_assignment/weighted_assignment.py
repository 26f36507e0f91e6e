"""The base of policies that decide by the weight of each request on each class of devices.

The waiting and running requests of one priority class compete, the highest class first, each for what the classes
above it leave. The `solver` finds the assignment of requests to device classes with the greatest sum of weights. Then
waiting requests are placed, and requests that run elsewhere are preempted if a request waits for their devices. A
request that one decision takes off its devices is placed by a later decision, when its new devices are free; the
weights are made so that the later decision comes to the same result. Where leases can't be taken back, each waiting
request chooses a class of devices in its turn (`patience`).

Devices of lower classes count as free for a higher one, at a price: a request takes them only if it can't start
otherwise, or gains more from them. Which leases a higher class gets, `LeastLossPreemption` decides, as under
`priority`.

In each class, requests that the assignment serves come first, each on its device class. Then come the others as in
`ListPolicy`, which also reserves devices for the first of them that has to wait. A request that the assignment does not
serve never takes devices that another is about to get.
"""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Plan, ReasonCode, Wait
from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.class_assignment.candidates import (
    AssignmentProblem,
    Candidate,
    Options,
    as_requested,
    assignment_problem,
    narrowed,
)
from hetero_airflow.policies.class_assignment.free_times import MAX_CHOICES, FreeTimes
from hetero_airflow.policies.class_assignment.patience import ClassChoice, ClassChoices, explained
from hetero_airflow.policies.class_assignment.solver import WAITING, solve_assignment
from hetero_airflow.policies.class_assignment.victims import plan_changes
from hetero_airflow.policies.core.linear_program import Floats, Numbers
from hetero_airflow.policies.core.list_policy import ListPolicy, QueueOrder
from hetero_airflow.policies.core.list_scheduler import MayOvertake
from hetero_airflow.policies.core.preemption import MakePreemptionPlan, Offer
from hetero_airflow.policies.core.preemption_plan import CLASS_RULES, LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_priority
from hetero_airflow.policies.core.run_ends import ENOUGH_RUNS

CLASS_FACTOR = 16.0
"""A request weighs this many times as much as one of the next lower priority class, where it could run elsewhere."""

_BELOW = 0.99
"""What a lease of a lower class weighs at most, in parts of the least weight of a waiting request for each device. So
the sum is greater if the waiting request runs."""

RESTART_S = 60.0
"""What it takes to go on elsewhere."""

EXPECTED_STAY_RUNS = 0.06
"""How long a request is expected to stay on a class, in mean runs. The restart is lost from that time, for the request
that leaves and for the one that returns. On generated streams of jobs with 1 to 8 devices (seeds 1000 to 1002), it has
0.997 to 1.002 of the mean JCT and 0.88 to 0.96 of the preemptions of 0.075; 0.05 has 0.999 to 1.004 and 0.87 to 0.97
of them."""

MAX_INTERRUPTIONS = 32
"""A request that was interrupted so often is settled: it goes before the others of its class, and gives way to none.
On 14 generated streams of jobs with 1 to 8 devices, 24 costs 0.7 % of the mean JCT, and 32 costs 0.4 %."""

_SETTLED = 1e3
"""A settled request that waits weighs this many times as much as any other; one that runs, this many times as that."""

BoolVector = NDArray[np.bool_]


class Weight(Protocol):
    """The plug-in point: the weight of running a request. Pure."""

    def __call__(self, candidate: Candidate, mean_run_s: float) -> float:
        """The weight on its fastest class, above 0; `mean_run_s` is the mean duration of runs."""


@dataclass(frozen=True, slots=True)
class _AssignedClasses:
    """The class of each candidate."""

    classes: dict[str, str | None]
    """Request id → device class; None: it is to wait."""
    weights: dict[str, float]
    displaced: tuple[Candidate, ...]
    """The fixed requests that give way to higher classes."""


class WeightedAssignment(ListPolicy):
    """A policy made of weights. Pure: what it caches changes no decision.

    :param exponent: on a class where the request runs at relative speed r, it has ``r ** exponent`` of its weight
    :param order: who chooses first where nothing is taken back within a class
    """

    period_s: float | None = 1800.0
    """Weights change slowly with the time that requests have run and waited."""
    bounds_interruptions: bool = False
    """A request that was interrupted `MAX_INTERRUPTIONS` times goes before the others of its class. Policies whose
    requests take turns do without."""

    def __init__(self, name: str, weight: Weight, exponent: float, order: QueueOrder = by_priority) -> None:
        preemption = partial(LeastLossPreemption, name, CLASS_RULES)
        super().__init__(name, by_priority, TightFitScorer(), preemption=preemption)
        self._turns = order
        self._weight = weight
        self._exponent = exponent

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        is_competing = snapshot.can_preempt and snapshot.preempts_within_class
        return (self._compete if is_competing else self._choose)(snapshot, index, now)

    def _compete(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        """All requests of a class compete: those that the assignment serves come first, each on its device class."""
        problem = assignment_problem(snapshot, index, now)
        names = sorted(problem.capacities)
        weights = self._class_weights(problem, names) if problem.candidates else np.empty((0, len(names)))
        is_movable, kept_until = _keep_new_holders(problem, snapshot, now)
        if self.bounds_interruptions:
            pending = (candidate.pending for candidate in problem.candidates)
            problem.settled = frozenset(p.id for p in pending if p.interruptions >= MAX_INTERRUPTIONS)
        assigned = self._assign(problem, weights[is_movable])
        changes = plan_changes(problem, index, assigned.classes, assigned.weights, assigned.displaced)
        ids = {pending.id for pending in snapshot.pending}
        to_serve = [candidate for candidate in changes.arriving if candidate.pending.id in ids]
        queue = {candidate.pending.id: rank for rank, candidate in enumerate(to_serve)}
        unassigned = {request_id for request_id, name in assigned.classes.items() if name is None}
        options = {
            candidate.pending.id: (candidate.options[name],)
            for candidate in to_serve
            if (name := assigned.classes[candidate.pending.id]) is not None
            and candidate.is_exact
            and candidate not in changes.unplaceable
        }
        ending = snapshot.with_preempted({offer.lease.id for offer in changes.offers})
        take_turns = partial(self._take_turns, ending, changes.offers, queue, unassigned, now)
        plan = take_turns(index, options)
        while stuck := _stuck(plan, options):  # shares, cores and memory are not counted: elsewhere it may fit
            options = {request_id: option for request_id, option in options.items() if request_id not in stuck}
            plan = take_turns(self._indexed(snapshot), options)
        newcomers = (candidate for candidate in problem.candidates if not candidate.has_run)
        if all(candidate.speeds.get(assigned.classes[candidate.pending.id] or "", 0.0) == 1 for candidate in newcomers):
            kept_until = None  # the next event comes soon enough, and each decision more moves more requests
        until = min((at for at in (plan.until, kept_until) if at is not None), default=None)
        return replace(plan, until=until)

    def _take_turns(
        self,
        snapshot: Snapshot,
        offers: Sequence[Offer],
        queue: Mapping[str, int],
        unassigned: AbstractSet[str],
        now: datetime,
        index: WorkerIndex,
        options: Options,
    ) -> Plan:
        """The plan of the list scheduler: by class, and in each class in the order of `queue`.

        :param snapshot: in it, the leases that are offered are preempted
        """
        offers = [replace(offer) for offer in offers]  # the list scheduler says who waits for them
        return self._schedule_options(
            snapshot,
            index,
            options,
            lambda pending, _: sorted(
                by_priority(pending, snapshot),
                key=lambda p: (p.request.priority.rank, queue.get(p.id, len(queue))),
            ),
            lambda pending, head: pending.id not in unassigned or head.id not in queue,
            now,
            partial(LeastLossPreemption, self.name, CLASS_RULES, offers=offers, takers=queue.keys()),
        )

    def _choose(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        """No request is moved within its class, and leases are taken back as under `priority`.

        In their turns the requests get a class of devices, and may wait for it, see `ClassChoices`.
        """
        plan = super()._plan(snapshot, index, now) if snapshot.can_preempt else None
        queue = self._turns(snapshot.pending, snapshot)
        choices = self._choices(queue[:MAX_CHOICES], snapshot, index if plan is None else self._indexed(snapshot), now)
        if plan is not None and not choices and queue == self._order(snapshot.pending, snapshot):
            return plan
        options = {
            candidate.pending.id: tuple(candidate.options[name] for name in choice.names)
            for candidate, choice in choices
            if len(choice.names) < len(candidate.options)
        }
        chosen = self._schedule_options(
            snapshot, self._indexed(snapshot), options, self._turns, self._may_overtake, now
        )
        if plan is not None and chosen.preemptions != plan.preemptions:
            return plan
        return explained(chosen, choices)

    def _choices(
        self, first: Sequence[PendingRequest], snapshot: Snapshot, index: WorkerIndex, now: datetime
    ) -> list[tuple[Candidate, ClassChoice]]:
        """The choices of the first requests in the queue for which the class makes a difference."""
        problem = assignment_problem(replace(snapshot, pending=tuple(first), can_preempt=False), index, now)
        waiting = {candidate.pending.id: candidate for candidate in problem.candidates}
        queue = [waiting[p.id] for p in first if p.id in waiting]
        if all(len(set(candidate.speeds.values())) == 1 for candidate in queue if candidate.is_exact):
            return []
        times = FreeTimes(problem, snapshot, index, now)
        choices = ClassChoices(times, queue, problem.mean_run_s, now, _patient_rank(snapshot))
        found = ((candidate, choices.choose(candidate)) for candidate in queue)
        return [(candidate, choice) for candidate, choice in found if choice is not None]

    def _schedule_options(
        self,
        snapshot: Snapshot,
        index: WorkerIndex,
        options: Options,
        order: QueueOrder,
        may_overtake: MayOvertake | None,
        now: datetime,
        make_preemption_plan: MakePreemptionPlan | None = None,
    ) -> Plan:
        """The plan of the list scheduler, in which some requests may run only by some options."""
        snapshot = narrowed(snapshot, options)
        return as_requested(self._schedule(snapshot, index, order, may_overtake, now, make_preemption_plan), options)

    def _class_weights(self, problem: AssignmentProblem, names: list[str]) -> Floats:
        """The weight of each candidate on each class: ``float [candidates, classes]``, 0 where it can't run."""
        weights = np.array([self._weight(candidate, problem.mean_run_s) for candidate in problem.candidates])
        return weights[:, None] * _speeds(problem.candidates, names) ** self._exponent

    def _assign(self, problem: AssignmentProblem, class_weights: Floats) -> _AssignedClasses:
        """The assignment with the greatest weight, in which a move costs a restart, class by class.

        :param class_weights: as from `_class_weights`, one row for each candidate of the problem
        """
        names, candidates = sorted(problem.capacities), [*problem.candidates, *problem.fixed]
        if not candidates:
            return _AssignedClasses({}, {}, ())
        column = {name: number for number, name in enumerate(names)}
        current = np.array([WAITING if c.current is None else column[c.current] for c in candidates])
        values = np.vstack([class_weights, _on_their_own(current[len(class_weights) :], len(names))])
        ranks = np.array([candidate.rank for candidate in candidates])
        weights = (values.max(axis=1) * CLASS_FACTOR**-ranks).tolist()
        stay_s = EXPECTED_STAY_RUNS * problem.mean_run_s
        kept_part = stay_s / (stay_s + RESTART_S)
        is_unmoved = current[:, None] == np.arange(len(names))
        has_run = np.array([candidate.has_run for candidate in candidates])[:, None]
        values *= np.where(is_unmoved, 1 / kept_part, np.where(has_run, kept_part, 1.0))
        values[(values <= 0) | (_speeds(candidates, names) <= 0)] = -np.inf
        sizes = np.array([candidate.count for candidate in candidates])
        assigned = _assign_by_class(
            values,
            sizes,
            np.array([problem.capacities[name] for name in names]),
            current,
            ranks,
            np.arange(len(candidates)) >= len(problem.candidates),
            np.array([candidate.pending.id in problem.settled for candidate in candidates]),
        )
        ids = [candidate.pending.id for candidate in problem.candidates]
        classes = [None if number == WAITING else names[number] for number in assigned.tolist()]
        return _AssignedClasses(
            dict(zip(ids, classes, strict=False)),
            dict(zip(ids, weights, strict=False)),
            tuple(c for c, name in zip(problem.fixed, classes[len(ids) :], strict=True) if name is None),
        )


def _patient_rank(snapshot: Snapshot) -> float:
    """See `ClassChoices`. A class for which devices can be taken back does not wait: it would take them back."""
    if not snapshot.patience or len(snapshot.estimates.finished_s) < ENOUGH_RUNS:
        return math.inf
    return max((h.request.priority.rank for h in snapshot.holders.values()), default=0) if snapshot.can_preempt else 0


def _stuck(plan: Plan, options: Options) -> set[str]:
    """Those of the requests with an option that wait, and for which nothing ends."""
    waits = (decision for decision in plan.decisions if isinstance(decision, Wait) and decision.request_id in options)
    return {wait.request_id for wait in waits if wait.reason.code is not ReasonCode.PREEMPTING}


def _assign_by_class(
    values: Floats,
    sizes: Numbers,
    capacities: Numbers,
    current: Numbers,
    ranks: Numbers,
    is_fixed: BoolVector,
    is_settled: BoolVector,
) -> Numbers:
    """The class of each candidate, or `WAITING`: the higher priority classes first.

    :param values: see `solve_assignment`
    :param ranks: ``int [candidates]`` of the priority classes
    :param is_fixed: ``bool [candidates]``; they stay where they are unless a higher class needs their devices
    :param is_settled: ``bool [candidates]``; they go before the others of their class
    """
    assigned, left = current.copy(), capacities.copy()
    for rank in np.unique(ranks):
        is_own, is_kept = (ranks == rank) & ~is_fixed, (ranks == rank) & is_fixed & (assigned != WAITING)
        np.subtract.at(left, assigned[is_kept], sizes[is_kept])
        is_lower = (ranks > rank) & (assigned != WAITING)
        is_waiting = is_own & (current == WAITING)
        scale = CLASS_FACTOR ** (rank - ranks)
        if is_waiting.any() and is_lower.any():
            least = values[is_waiting] / sizes[is_waiting, None]
            most = _BELOW * least[least > 0].min(initial=np.inf)
            scale[is_lower] = np.minimum(scale, most / np.maximum(values.max(axis=1), 1e-300))[is_lower]
        group = np.flatnonzero(is_own | is_lower)
        weighed = values[group] * scale[group, None]
        _put_settled_first(weighed, np.flatnonzero((is_settled & is_own)[group]), sizes[group], assigned[group])
        solved = solve_assignment(weighed, sizes[group], left, assigned[group])
        assigned[group] = solved
        placed = is_own & (assigned != WAITING)
        np.subtract.at(left, assigned[placed], sizes[placed])
    return assigned


def _put_settled_first(values: Floats, settled: Numbers, sizes: Numbers, current: Numbers) -> None:
    """Make the values of these rows greater than all others; those that run move only where that pays for itself."""
    top = values.max(initial=0.0)
    for row in settled.tolist():
        values[row] *= _SETTLED * top / max(values[row].max(), 1e-300)
        if current[row] != WAITING:
            values[row, values[row] < values[row, current[row]]] = -np.inf
            values[row] += _SETTLED**2 * top * sizes[row]


def _on_their_own(current: Numbers, classes: int) -> Floats:
    """Weights of fixed requests, which run nowhere else: ``float [requests, classes]``."""
    return np.asarray(current[:, None] == np.arange(classes), dtype=float)


def _keep_new_holders(
    problem: AssignmentProblem, snapshot: Snapshot, now: datetime
) -> tuple[BoolVector, datetime | None]:
    """Take the requests that have not had their minimum run time out of the problem, with their devices.

    Returns which candidates stay in the problem (``bool [candidates]``), and when the first of the others has had its
    time; None if there is no other.

    Without this, requests of several devices took turns on one worker within seconds: each decision began where the one
    before had ended.
    """
    ends = list[datetime]()

    def keeps(candidate: Candidate) -> bool:
        lease, pending = candidate.lease, candidate.pending
        if lease is None or candidate.current is None:
            return False
        restart_s = usual_restart_s(candidate.count) if snapshot.min_run_s and pending.attained_service_s else 0.0
        ends_at = lease.granted_at + timedelta(seconds=snapshot.min_run_s + restart_s)
        if ends_at <= now:
            return False
        ends.append(ends_at)
        problem.capacities[candidate.current] -= candidate.count
        return True

    is_movable = [not keeps(candidate) for candidate in problem.candidates]
    problem.fixed = [candidate for candidate in problem.fixed if not keeps(candidate)]
    problem.candidates = [c for c, moves in zip(problem.candidates, is_movable, strict=True) if moves]
    return np.array(is_movable, dtype=bool), min(ends, default=None)


def _speeds(candidates: Sequence[Candidate], names: list[str]) -> Floats:
    """Relative speed of each candidate on each class, 0 where it can't run: ``float [candidates, classes]``."""
    rows: dict[int, int] = {}
    table: list[list[float]] = []
    row_of = []
    for candidate in candidates:
        row = rows.get(id(candidate.speeds))
        if row is None:
            row = rows[id(candidate.speeds)] = len(table)
            table.append([candidate.speeds.get(name, 0.0) for name in names])
        row_of.append(row)
    return np.array(table)[row_of]
