"""Who has to leave so that an assignment comes true: requests of several devices need them on one worker. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Preempt
from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate

ClassByRequest = Mapping[str, str | None]
"""Request id → device class on which it is to run; None: nowhere."""

Weights = Mapping[str, float]
"""Request id → what it is worth that it runs."""


@dataclass(frozen=True, slots=True)
class AssignmentChanges:
    """How an assignment comes true."""

    comers: tuple[Candidate, ...]
    """Those that are to run where they don't run yet, in the order in which they are placed: the largest first."""
    unfit: tuple[Candidate, ...]
    """Those of them for which no worker has enough devices, whoever leaves."""
    preemptions: tuple[Preempt, ...]


def plan_changes(
    found: AssignmentProblem, fleet: WorkerIndex, classes: ClassByRequest, worths: Weights
) -> AssignmentChanges:
    """Who comes, and who leaves for it.

    Whoever is not to run where it does leaves. Where a request of several devices still finds no
    worker, the smaller ones on one worker of its class make room and go elsewhere in the class.
    """
    seats = {seat.worker.id: number for number, seat in enumerate(fleet.entries)}
    running = [one for one in found.contenders if one.lease is not None]
    leaving = [one for one in running if classes[one.pending.id] != one.current]
    packing = _FreeDevices(found, seats, leaving, (one for one in running if classes[one.pending.id] == one.current))
    age = {one.pending.id: rank for rank, one in enumerate(found.contenders)}

    def entry(one: Candidate) -> tuple[int, float, int, Candidate]:
        return -one.count, -worths[one.pending.id], age[one.pending.id], one

    coming = [entry(one) for one in found.contenders if classes[one.pending.id] not in (None, one.current)]
    heapify(coming)
    comers, unfit = list[Candidate](), list[Candidate]()
    while coming:
        one = heappop(coming)[-1]
        name = classes[one.pending.id]
        comers.append(one)
        if name is None or one.count == 1 or not one.is_exact or packing.put(one.count, name):
            continue
        victims = packing.clear(one.count, name, worths)
        leaving += victims
        for victim in victims:
            heappush(coming, entry(victim))
        if not victims:
            unfit.append(one)
    return AssignmentChanges(tuple(comers), tuple(unfit), tuple(_preemptions(leaving, comers, classes)))


class _FreeDevices:
    """The devices of each class on each worker while requests of several devices are put there."""

    def __init__(
        self,
        found: AssignmentProblem,
        seats: Mapping[str, int],
        leaving: Iterable[Candidate],
        staying: Iterable[Candidate],
    ) -> None:
        self._free = {name: Counter(workers) for name, workers in found.free.items()}
        for name, workers in found.coming.items():
            self._free[name].update(workers)
        self._seats = seats
        for one in leaving:
            self._give_back(one)
        self._staying: defaultdict[str, defaultdict[int, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
        for one in staying:
            if one.lease is not None and one.current is not None:
                self._staying[one.current][seats[one.lease.worker_id]].append(one)

    def put(self, count: int, name: str) -> bool:
        """Take the devices on the worker where the fewest are left; False if none has so many."""
        workers = self._free[name]
        number = min((w for w, free in workers.items() if free >= count), key=lambda w: (workers[w], w), default=None)
        if number is not None:
            workers[number] -= count
        return number is not None

    def clear(self, count: int, name: str, worths: Weights) -> list[Candidate]:
        """Smaller requests that leave the worker on which they are worth least, and the devices are taken; or none."""
        options = []
        for number, there in sorted(self._staying[name].items()):
            free, victims = self._free[name][number], list[Candidate]()
            for one in sorted(there, key=lambda one: (worths[one.pending.id], one.pending.id)):
                if free < count and one.count < count:
                    victims.append(one)
                    free += one.count
            if free >= count:
                options.append((sum(worths[one.pending.id] for one in victims), number, victims))
        if not options:
            return []
        _, number, victims = min(options, key=lambda option: option[:2])
        for one in victims:
            self._staying[name][number].remove(one)
            self._give_back(one)
        self._free[name][number] -= count
        return victims

    def _give_back(self, one: Candidate) -> None:
        if one.lease is not None and one.current is not None:
            self._free[one.current][self._seats[one.lease.worker_id]] += one.count


def _preemptions(leaving: list[Candidate], comers: list[Candidate], classes: ClassByRequest) -> Iterable[Preempt]:
    """Each of the leaving with the comer that is the first to lack devices of its class."""
    lacking: defaultdict[str | None, list[str]] = defaultdict(list)
    for one in comers:
        lacking[classes[one.pending.id]] += [one.pending.id] * one.count
    for one in leaving:
        if one.lease is None:
            continue
        queue = lacking[one.current]
        beneficiary = queue[0] if queue and queue[0] != one.pending.id else None
        del queue[: one.count]
        to = classes[one.pending.id]
        goes = f"to move to {to}" if to not in (None, one.current) else "to wait or to go elsewhere"
        cause = goes if beneficiary is None else f"{goes}: {beneficiary} makes more of {one.current}"
        yield Preempt(one.lease.id, one.lease.token, one.pending.id, beneficiary, cause)
