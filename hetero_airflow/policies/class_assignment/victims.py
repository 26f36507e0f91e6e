"""Which running requests must leave so that an assignment comes true. Pure.

A request of several devices needs them on one worker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Preempt
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate

ClassByRequest = Mapping[str, str | None]
"""Request id → device class on which it is to run; None: on none."""

Weights = Mapping[str, float]
"""Request id → the weight of running it."""


@dataclass(frozen=True, slots=True)
class AssignmentChanges:
    """How an assignment comes true."""

    arriving: tuple[Candidate, ...]
    """Those that are to run where they don't run yet, in the order in which they are placed: the largest first."""
    unplaceable: tuple[Candidate, ...]
    """Those of them for which no worker has enough devices, whatever leaves."""
    preemptions: tuple[Preempt, ...]


def plan_changes(
    problem: AssignmentProblem, index: WorkerIndex, classes: ClassByRequest, weights: Weights
) -> AssignmentChanges:
    """Which requests arrive, and which leave for them.

    A request leaves if it is to run elsewhere. If a request of several devices still finds no worker, the smaller
    requests on one worker of its class leave that worker and go elsewhere in the class.
    """
    numbers = {entry.worker.id: number for number, entry in enumerate(index.entries)}
    running = [candidate for candidate in problem.candidates if candidate.lease is not None]
    leaving = [candidate for candidate in running if classes[candidate.pending.id] != candidate.current]
    staying = [candidate for candidate in running if classes[candidate.pending.id] == candidate.current]
    free = _FreeDevices(problem, numbers, leaving, staying)
    age = {candidate.pending.id: rank for rank, candidate in enumerate(problem.candidates)}

    def entry(candidate: Candidate) -> tuple[int, float, int, Candidate]:
        return -candidate.count, -weights[candidate.pending.id], age[candidate.pending.id], candidate

    queue = [entry(c) for c in problem.candidates if classes[c.pending.id] not in (None, c.current)]
    heapify(queue)
    arriving, unplaceable = list[Candidate](), list[Candidate]()
    while queue:
        candidate = heappop(queue)[-1]
        name = classes[candidate.pending.id]
        arriving.append(candidate)
        is_placeable = candidate.count == 1 or not candidate.is_exact
        if name is None or is_placeable or free.take(candidate.count, name):
            continue
        victims = free.clear(candidate.count, name, weights)
        leaving += victims
        for victim in victims:
            heappush(queue, entry(victim))
        if not victims:
            unplaceable.append(candidate)
    preemptions = tuple(_preemptions(leaving, arriving, classes))
    return AssignmentChanges(tuple(arriving), tuple(unplaceable), preemptions)


class _FreeDevices:
    """The free devices of each class on each worker, while requests of several devices take them.

    :param numbers: worker id → its number in the index
    """

    def __init__(
        self,
        problem: AssignmentProblem,
        numbers: Mapping[str, int],
        leaving: Iterable[Candidate],
        staying: Iterable[Candidate],
    ) -> None:
        self._free = {name: Counter(workers) for name, workers in problem.free.items()}
        for name, workers in problem.ending.items():
            self._free[name].update(workers)
        self._numbers = numbers
        for candidate in leaving:
            self._give_back(candidate)
        self._staying: defaultdict[str, defaultdict[int, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
        for candidate in staying:
            if candidate.lease is not None and candidate.current is not None:
                self._staying[candidate.current][numbers[candidate.lease.worker_id]].append(candidate)

    def take(self, count: int, name: str) -> bool:
        """Take the devices on the worker where the fewest are left; False if none has enough."""
        workers = self._free[name]
        number = min((w for w, free in workers.items() if free >= count), key=lambda w: (workers[w], w), default=None)
        if number is not None:
            workers[number] -= count
        return number is not None

    def clear(self, count: int, name: str, weights: Weights) -> list[Candidate]:
        """Take the devices of smaller requests on the worker where these weigh least; the victims, or none."""
        options = []
        for number, candidates in sorted(self._staying[name].items()):
            free, victims = self._free[name][number], list[Candidate]()
            for candidate in sorted(candidates, key=lambda c: (weights[c.pending.id], c.pending.id)):
                if free < count and candidate.count < count:
                    victims.append(candidate)
                    free += candidate.count
            if free >= count:
                options.append((sum(weights[victim.pending.id] for victim in victims), number, victims))
        if not options:
            return []
        _, number, victims = min(options, key=lambda option: option[:2])
        for victim in victims:
            self._staying[name][number].remove(victim)
            self._give_back(victim)
        self._free[name][number] -= count
        return victims

    def _give_back(self, candidate: Candidate) -> None:
        if candidate.lease is not None and candidate.current is not None:
            self._free[candidate.current][self._numbers[candidate.lease.worker_id]] += candidate.count


def _preemptions(leaving: list[Candidate], arriving: list[Candidate], classes: ClassByRequest) -> Iterable[Preempt]:
    """Each leaving request, with the first arriving request that still lacks devices of its class."""
    lacking: defaultdict[str | None, list[Candidate]] = defaultdict(list)
    for candidate in arriving:
        lacking[classes[candidate.pending.id]] += [candidate] * candidate.count
    for candidate in leaving:
        if candidate.lease is None:
            continue
        queue = lacking[candidate.current]
        beneficiary = queue[0].pending if queue and queue[0] is not candidate else None
        del queue[: candidate.count]
        to = classes[candidate.pending.id]
        cause = f"to move to {to}" if to not in (None, candidate.current) else "to wait or to go elsewhere"
        if beneficiary is not None:
            cause = f"{cause}: {beneficiary.id} {_advantage(beneficiary, candidate)}"
        beneficiary_id = None if beneficiary is None else beneficiary.id
        yield Preempt(candidate.lease.id, candidate.lease.token, candidate.pending.id, beneficiary_id, cause)


def _advantage(beneficiary: PendingRequest, candidate: Candidate) -> str:
    """Why the beneficiary gets the devices of the candidate."""
    priority, victims = beneficiary.request.priority, candidate.pending.request.priority
    if priority.rank < victims.rank:
        return f"has the priority {priority}, this task has {victims}"
    return f"gains more from {candidate.current}"
