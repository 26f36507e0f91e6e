"""What would help now: how many more workers of which type would let all requests that wait start. Pure.

Known workers are the types that can be had, those that are lost now among them: a fleet that was scaled to zero
says what it can be scaled to. All that waits is packed with the real matcher, the hungriest first (first fit
decreasing; Johnson 1974), into what is free now and then into new workers; each new one is of the smallest type that
can give the request its most wanted alternative. The number is enough, and not always the least: bin packing is
NP-hard. Not looked at: whose turn it is, and how far apart the members of a gang would stand.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hetero_airflow.matching.feasibility import device_count
from hetero_airflow.matching.matcher import Fit, Matcher, OccupancyState
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.model.worker_type import worker_type

_GRANTED_S = 0.0
"""When what is packed here would be granted: the matcher asks, and `TightFitScorer` does not look at it."""


@dataclass(frozen=True, slots=True)
class WantedType:
    """More workers of one type."""

    type: str
    workers: int
    requests: int
    """How many of those that wait would start on them."""


@dataclass(frozen=True, slots=True)
class WantedWorkers:
    """What would help now."""

    types: tuple[WantedType, ...]
    """Every known type by its name, also those of which none is wanted."""
    waiting: int
    fitting: int
    """Of those that wait: for whom the devices are free already."""
    unservable: int
    """For whom no known type would do."""


def wanted_workers(snapshot: Snapshot) -> WantedWorkers:
    """How many more workers of which type would let what waits start.

    >>> from hetero_airflow.testing import a_pending, a_worker
    >>> waits = tuple(a_pending(f"r{n}", "gpu:2") for n in range(3))
    >>> wanted_workers(Snapshot(0, workers=(a_worker(),), pending=waits))
    WantedWorkers(types=(WantedType(type='2x-nvidia-a100-sxm4-40gb', workers=2, requests=2),), waiting=3, fitting=1, \
unservable=0)
    """
    packing = _WorkerPacking(snapshot)
    fitting = unservable = 0
    for unit in sorted(_units(snapshot.pending), key=_requested_milli, reverse=True):
        types = packing.add(unit)
        if types is None:
            unservable += len(unit)
            continue
        fitting += types.count("")
    wanted = tuple(
        WantedType(name, packing.opened[name], packing.served[name])
        for name in sorted(one.name for one in packing.types)
    )
    return WantedWorkers(wanted, len(snapshot.pending), fitting, unservable)


@dataclass(frozen=True, slots=True)
class _WorkerType:
    name: str
    state: OccupancyState
    """Of a new worker."""
    size: tuple[int, int]
    """Accelerators and cores: the smaller one is preferred."""


@dataclass(slots=True)
class _FittingStates:
    """The states on which an alternative fits, as far as they were looked at."""

    seen: int = 0
    fits: list[tuple[str, OccupancyState]] = field(default_factory=list)


class _WorkerPacking:
    """Free room and new workers, filled one request after the other."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._matcher = Matcher(TightFitScorer())
        self.opened: Counter[str] = Counter()
        """Type → new workers."""
        self.served: Counter[str] = Counter()
        """Type → requests on new workers."""
        self._room: Counter[tuple[str, OccupancyState]] = Counter()
        """(type of new workers or "" for present ones, state) → how many there are."""
        self._order: list[tuple[str, OccupancyState]] = []
        """All keys that ever were in `_room`; present workers first."""
        self._known: defaultdict[str, _FittingStates] = defaultdict(_FittingStates)
        used = UsageByWorker.of(snapshot.usage).by_worker
        for worker in snapshot.workers:
            if worker.state is WorkerState.ONLINE:
                self._put("", self._matcher.present(self._matcher.entry(worker), used.get(worker.id, {})))
        self.types = tuple(self._type(name, worker) for name, worker in _templates(snapshot.workers).items())

    def _type(self, name: str, worker: Worker) -> _WorkerType:
        new = worker.model_copy(update={"id": f"new {name}", "state": WorkerState.ONLINE})
        state = self._matcher.present(self._matcher.entry(new), {})
        cores = 0 if worker.cpu is None else len(worker.cpu.cores)
        return _WorkerType(name, state, (state.shape.accelerators, cores))

    def add(self, unit: Sequence[PendingRequest]) -> list[str] | None:
        """Pack a request or all members of a gang; on which types of new workers ("" for a present one).

        None, and nothing packed, where it can't be done.
        """
        before = (self._room.copy(), self.opened.copy()) if len(unit) > 1 else None
        types: list[str] = []
        for one in unit:
            found = self._add(one.request)
            if found is None:
                if before is not None:
                    self._room, self.opened = before
                return None
            types.append(found)
        self.served.update(name for name in types if name)
        return types

    def _add(self, request: DeviceRequest) -> str | None:
        for alternative in request.alternatives:
            spot = next((one for one in self._spots(alternative) if self._room[one]), None)
            if spot is not None:
                return self._take(alternative, spot)
        for alternative in request.alternatives:
            able = [one for one in self.types if isinstance(self._matcher.outcome(alternative, one.state, None), Fit)]
            if able:
                best = min(able, key=lambda one: (one.size, one.name))
                self.opened[best.name] += 1
                self._put(best.name, best.state)
                return self._take(alternative, (best.name, best.state))
        return None

    def _spots(self, alternative: Alternative) -> Iterator[tuple[str, OccupancyState]]:
        """The states on which it fits, whether any worker is in them or not; each state is looked at once."""
        known = self._known[alternative.key]
        yield from known.fits
        while known.seen < len(self._order):
            spot = self._order[known.seen]
            known.seen += 1
            if isinstance(self._matcher.outcome(alternative, spot[1], None), Fit):
                known.fits.append(spot)
                yield spot

    def _take(self, alternative: Alternative, spot: tuple[str, OccupancyState]) -> str:
        name, state = spot
        fit = self._matcher.outcome(alternative, state, None)
        assert isinstance(fit, Fit), "it was found to fit"
        self._room[spot] -= 1
        self._put(name, self._matcher.taken(state, fit, _GRANTED_S))
        return name

    def _put(self, name: str, state: OccupancyState) -> None:
        spot = (name, state)
        if spot not in self._room:
            self._order.append(spot)
        self._room[spot] += 1


def _templates(workers: Iterable[Worker]) -> dict[str, Worker]:
    """Type → the worker of it that has most to lease, the first of equals: what a new one is taken to be like."""
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
    for one in pending:
        units["gang" if one.gang else "", one.gang or one.id].append(one)
    return units.values()


def _requested_milli(unit: Sequence[PendingRequest]) -> int:
    return max(device_count(way) * way.share_milli for one in unit for way in one.request.alternatives[:1])
