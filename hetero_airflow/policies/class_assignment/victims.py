"""Which running requests must leave so that an assignment comes true. Pure.

A request of several devices needs them on one worker.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.policies.class_assignment.candidates import AssignmentProblem, Candidate
from hetero_airflow.policies.core.preemption import Offer

ClassByRequest = Mapping[str, str | None]
"""Request id → device class on which it is to run; None: on none."""

Weights = Mapping[str, float]
"""Request id → the weight of running it."""


@dataclass(frozen=True, slots=True)
class AssignmentChanges:
    """How an assignment comes true."""

    arriving: tuple[Candidate, ...]
    """Those that are to run where they don't run yet, in the order in which they are placed: by class, and the largest
    of each first."""
    unplaceable: tuple[Candidate, ...]
    """Those of them for which no worker has enough devices, whatever leaves."""
    offers: tuple[Offer, ...]


def plan_changes(
    problem: AssignmentProblem,
    index: WorkerIndex,
    classes: ClassByRequest,
    weights: Weights,
    displaced: Iterable[Candidate],
) -> AssignmentChanges:
    """Which requests arrive, and which leave for those of their own priority class.

    A request leaves if it is to run elsewhere. If a request of several devices still finds no worker, the smaller
    requests of its priority class on one worker of its device class leave that worker and go elsewhere.

    :param displaced: fixed requests that are to give way to higher classes
    """
    running = [candidate for candidate in problem.candidates if candidate.lease is not None]
    leaving = [candidate for candidate in running if classes[candidate.pending.id] != candidate.current]
    staying = [candidate for candidate in running if classes[candidate.pending.id] == candidate.current]
    free = _FreeDevices(problem, index.numbers, (*leaving, *displaced), staying)
    age = {candidate.pending.id: rank for rank, candidate in enumerate(problem.candidates)}

    def entry(candidate: Candidate) -> tuple[int, int, float, int, Candidate]:
        return (
            candidate.rank,
            -candidate.count,
            -weights[candidate.pending.id],
            age[candidate.pending.id],
            candidate,
        )

    queue = [entry(c) for c in problem.candidates if classes[c.pending.id] not in (None, c.current)]
    heapify(queue)
    arriving, unplaceable = list[Candidate](), list[Candidate]()
    cleared: dict[str, Candidate] = {}
    while queue:
        candidate = heappop(queue)[-1]
        name = classes[candidate.pending.id]
        arriving.append(candidate)
        is_placeable = candidate.count == 1 or not candidate.is_exact
        if name is None or is_placeable or free.take(candidate.count, name):
            continue
        victims = free.clear(candidate, name, weights)
        leaving += victims
        for victim in victims:
            cleared[victim.pending.id] = candidate
            heappush(queue, entry(victim))
        if not victims:
            unplaceable.append(candidate)
    pairs = _paired(problem, (*leaving, *displaced), arriving, classes, cleared)
    return AssignmentChanges(tuple(arriving), tuple(unplaceable), tuple(_offers(pairs, classes)))


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
        self._settled = problem.settled
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

    def clear(self, arriving: Candidate, name: str, weights: Weights) -> list[Candidate]:
        """Take the devices of smaller requests of its class on the worker where these weigh least; the victims, or
        none."""
        options, count = [], arriving.count
        for number, candidates in sorted(self._staying[name].items()):
            free, victims = self._free[name][number], list[Candidate]()
            for candidate in sorted(candidates, key=lambda c: (weights[c.pending.id], c.pending.id)):
                may_go = candidate.rank == arriving.rank and candidate.pending.id not in self._settled
                if free < count and candidate.count < count and may_go:
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


def _offers(pairs: Iterable[tuple[Candidate, Candidate | None]], classes: ClassByRequest) -> Iterable[Offer]:
    """The leases of those that move, and of those that leave for a request of their own priority class.

    What a lower class has to give to a higher one is found where the higher one is placed, see `LeastLossPreemption`.

    :param pairs: who leaves, and who gets the devices
    """
    for candidate, beneficiary in pairs:
        lease, here, is_fixed = candidate.lease, candidate.current, candidate.pending.id not in classes
        if lease is None or here is None or is_fixed or (beneficiary and beneficiary.rank < candidate.rank):
            continue
        to = classes[candidate.pending.id]
        is_wanted = beneficiary is not None and beneficiary.rank == candidate.rank
        successor = beneficiary.pending if beneficiary and is_wanted and beneficiary.lease else None
        moves_to = to if to != here else None
        if moves_to or is_wanted:
            yield Offer(lease, candidate.pending, here, moves_to, not is_wanted, successor)


def _paired(
    problem: AssignmentProblem,
    leaving: Sequence[Candidate],
    arriving: Iterable[Candidate],
    classes: ClassByRequest,
    cleared: Mapping[str, Candidate],
) -> Iterable[tuple[Candidate, Candidate | None]]:
    """Who leaves, and who gets the devices; None if nobody needs them. The lowest class makes room first.

    :param cleared: request id → the request of several devices for which it leaves a worker
    """
    for candidate in leaving:
        if candidate.pending.id in cleared:
            yield candidate, cleared[candidate.pending.id]
    others = [candidate for candidate in leaving if candidate.pending.id not in cleared]
    lacking = _lacking(problem, leaving, arriving, classes, cleared)
    for candidate in sorted(others, key=lambda candidate: -candidate.rank):
        queue = lacking[candidate.current]
        yield candidate, next((other for other in queue if other is not candidate), None)
        del queue[: candidate.count]


def _lacking(
    problem: AssignmentProblem,
    leaving: Iterable[Candidate],
    arriving: Iterable[Candidate],
    classes: ClassByRequest,
    cleared: Mapping[str, Candidate],
) -> Mapping[str | None, list[Candidate]]:
    """Device class → who arrives there, once for each device, without those for whom enough is free or cleared."""
    large = {candidate.pending.id: candidate for candidate in cleared.values()}
    free = Counter({name: sum(workers.values()) for name, workers in problem.free.items()})
    free.update({name: devices.total() for name, devices in problem.ending.items()})
    for candidate in leaving:
        free[str(candidate.current)] += candidate.count if candidate.pending.id in cleared else 0
    for candidate in large.values():
        free[str(classes[candidate.pending.id])] -= candidate.count
    lacking: defaultdict[str | None, list[Candidate]] = defaultdict(list)
    for candidate in arriving:
        if candidate.pending.id not in large:
            lacking[classes[candidate.pending.id]] += [candidate] * candidate.count
    for name, devices in free.items():
        del lacking[name][: max(0, devices)]
    return lacking
