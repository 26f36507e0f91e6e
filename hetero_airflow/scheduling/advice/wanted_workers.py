"""How many more workers of which type would let all waiting requests start now. Pure.

The types are those of the known workers, lost ones included, so that a fleet that was scaled to zero has types too. The
matcher packs the waiting requests, the largest first (first fit decreasing; Johnson 1974), into free devices and then
into new workers. A new worker is of the smallest type that can serve the request by its first possible alternative. The
result is enough, but not always the least, since bin packing is NP-hard. It ignores the order of the queue and the
distance between the members of a gang.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hetero_airflow.matching.feasibility import device_count
from hetero_airflow.matching.matcher import Fit, Matcher, OccupancyState
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker, WorkerState, worker_type

_GRANTED_S = 0.0
"""The matcher needs a time of the grant; the scorer does not use it."""


@dataclass(frozen=True, slots=True)
class WantedType:
    """More workers of one type."""

    type: str
    workers: int
    requests: int
    """Waiting requests that would start on them."""


@dataclass(frozen=True, slots=True)
class WantedWorkers:
    """The workers that would let all waiting requests start now."""

    types: tuple[WantedType, ...]
    """Every known type by its name, also those of which no worker is wanted."""
    waiting: int
    fitting: int
    """Waiting requests whose devices are free already."""
    unservable: int
    """Waiting requests that no known type can serve."""


def wanted_workers(snapshot: Snapshot) -> WantedWorkers:
    """How many more workers of which type would let all waiting requests start.

    >>> from hetero_airflow.testing import a_pending, a_worker
    >>> waiting = tuple(a_pending(f"r{n}", "gpu:2") for n in range(3))
    >>> wanted_workers(Snapshot(0, workers=(a_worker(),), pending=waiting))
    WantedWorkers(types=(WantedType(type='2x-nvidia-a100-sxm4-40gb', workers=2, requests=2),), waiting=3, fitting=1, \
unservable=0)
    """
    packing = _WorkerPacking(snapshot)
    waiting = [pending for pending in snapshot.pending if not pending.is_paused]
    fitting = unservable = 0
    for unit in sorted(_units(waiting), key=_requested_milli, reverse=True):
        types = packing.add(unit)
        if types is None:
            unservable += len(unit)
            continue
        fitting += types.count("")
    names = sorted(type_.name for type_ in packing.types)
    wanted = tuple(WantedType(name, packing.new_workers[name], packing.served[name]) for name in names)
    return WantedWorkers(wanted, len(waiting), fitting, unservable)


@dataclass(frozen=True, slots=True)
class _WorkerType:
    name: str
    state: OccupancyState
    """The state of a new worker."""
    size: tuple[int, int]
    """Accelerators and cores; a smaller type is preferred."""


class _WorkerPacking:
    """Present and new workers that are filled with one request after the other."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._matcher = Matcher(TightFitScorer())
        self.new_workers: Counter[str] = Counter()
        """Type → new workers."""
        self.served: Counter[str] = Counter()
        """Type → requests on new workers."""
        self._workers: Counter[tuple[str, OccupancyState]] = Counter()
        """(type of new workers or "" for present ones, state) → how many workers there are."""
        self._keys: list[tuple[str, OccupancyState]] = []
        """All keys that ever were in `_workers`; present workers first."""
        self._fitting: defaultdict[str, list[tuple[str, OccupancyState]]] = defaultdict(list)
        """Key of an alternative → the keys that fit it."""
        self._checked: Counter[str] = Counter()
        """Key of an alternative → how many keys were checked."""
        used = UsageByWorker.of(snapshot.usage).by_worker
        for worker in snapshot.workers:
            if worker.state is WorkerState.ONLINE:
                self._put("", self._matcher.state_of(self._matcher.entry(worker), used.get(worker.id, {})))
        self.types = tuple(self._type(name, worker) for name, worker in _templates(snapshot.workers).items())

    def _type(self, name: str, worker: Worker) -> _WorkerType:
        new = worker.model_copy(update={"id": f"new {name}", "state": WorkerState.ONLINE})
        state = self._matcher.state_of(self._matcher.entry(new), {})
        cores = 0 if worker.cpu is None else len(worker.cpu.cores)
        return _WorkerType(name, state, (state.shape.accelerators, cores))

    def add(self, unit: Sequence[PendingRequest]) -> list[str] | None:
        """Pack a request or all members of a gang; the type of the new worker of each ("" for a present worker).

        Packs nothing and returns None if they can't all be served.
        """
        before = (self._workers.copy(), self.new_workers.copy()) if len(unit) > 1 else None
        types: list[str] = []
        for pending in unit:
            name = self._add(pending.request)
            if name is None:
                if before is not None:
                    self._workers, self.new_workers = before
                return None
            types.append(name)
        self.served.update(name for name in types if name)
        return types

    def _add(self, request: DeviceRequest) -> str | None:
        for alternative in request.alternatives:
            key = next((key for key in self._fitting_keys(alternative) if self._workers[key]), None)
            if key is not None:
                return self._take(alternative, key)
        for alternative in request.alternatives:
            able = [type_ for type_ in self.types if self._fits(alternative, type_.state)]
            if able:
                best = min(able, key=lambda type_: (type_.size, type_.name))
                self.new_workers[best.name] += 1
                self._put(best.name, best.state)
                return self._take(alternative, (best.name, best.state))
        return None

    def _fits(self, alternative: Alternative, state: OccupancyState) -> bool:
        return isinstance(self._matcher.match(alternative, state, None), Fit)

    def _fitting_keys(self, alternative: Alternative) -> Iterator[tuple[str, OccupancyState]]:
        """The keys of the states that fit, even if no worker is in them now; each state is checked once."""
        fitting = self._fitting[alternative.key]
        yield from fitting
        while self._checked[alternative.key] < len(self._keys):
            key = self._keys[self._checked[alternative.key]]
            self._checked[alternative.key] += 1
            if self._fits(alternative, key[1]):
                fitting.append(key)
                yield key

    def _take(self, alternative: Alternative, key: tuple[str, OccupancyState]) -> str:
        name, state = key
        fit = self._matcher.match(alternative, state, None)
        assert isinstance(fit, Fit), "the state fits"
        self._workers[key] -= 1
        self._put(name, self._matcher.state_after(state, fit, _GRANTED_S))
        return name

    def _put(self, name: str, state: OccupancyState) -> None:
        if (name, state) not in self._workers:
            self._keys.append((name, state))
        self._workers[name, state] += 1


def _templates(workers: Iterable[Worker]) -> dict[str, Worker]:
    """Type → its worker with the most leasable devices, the first of equals; a new worker is assumed to be like it."""
    best: dict[str, Worker] = {}
    for worker in workers:
        name = worker_type(worker)
        if name not in best or _leasable(worker) > _leasable(best[name]):
            best[name] = worker
    return best


def _leasable(worker: Worker) -> int:
    return sum(device.leasable for device in worker.devices)


def _units(pending: Iterable[PendingRequest]) -> Iterable[list[PendingRequest]]:
    """Gangs, and single requests, in the order of the queue."""
    units: defaultdict[tuple[str, str], list[PendingRequest]] = defaultdict(list)
    for request in pending:
        units["gang" if request.gang else "", request.gang or request.id].append(request)
    return units.values()


def _requested_milli(unit: Sequence[PendingRequest]) -> int:
    firsts = [pending.request.alternatives[0] for pending in unit]
    return max(device_count(alternative) * alternative.share_milli for alternative in firsts)
