"""The gang placer: finds where all members of a gang fit at the same time. It takes nothing.

It tries scopes from the nearest: one worker, one host, one rack, one site, anywhere. In each scope it first tries the
workers with the fastest network, then slower ones too. The best placement has the fastest bottleneck, then the fewest
workers, then the greatest score, then the first workers by id. A worker is as fast as its slowest accelerator.

Within a scope it packs the members class by class, the largest requests first. Each class goes to the worker that takes
most of the remaining members. For equal members this finds a packing if there is one, on the fewest workers, because
the workers do not depend on each other. For unequal members it is vector bin packing, which is NP-hard: this
first-fit-decreasing heuristic may miss a packing that exists.
"""

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

from hetero_airflow.matching.bandwidth import Bottleneck, bottleneck
from hetero_airflow.matching.feasibility import device_count
from hetero_airflow.matching.gangs.regions import WIDE_LEVELS, Regions
from hetero_airflow.matching.matcher import Fit, Matcher, OccupancyState
from hetero_airflow.matching.shapes import Shape, WorkerEntry
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.topology import Level
from hetero_airflow.units import MILLI_PER_DEVICE


class MemberClass(NamedTuple):
    """Members with equal requests."""

    options: tuple[tuple[int, Alternative], ...]
    """The alternatives by which they may be placed, with their numbers."""
    is_ordered: bool
    members: tuple[int, ...]
    key: object
    """Equal for classes with equal requests."""

    @property
    def size_milli(self) -> int:
        """Thousandths of devices that the largest option takes."""
        return max(device_count(alternative) * alternative.share_milli for _, alternative in self.options)


def equal_members(number: int, alternative: Alternative, members: int) -> MemberClass:
    """All members of a gang, to be placed by one alternative."""
    return MemberClass(((number, alternative),), True, tuple(range(members)), (number, alternative.key))


def member_classes(requests: Sequence[DeviceRequest]) -> list[MemberClass]:
    """The members grouped by equal requests, the largest requests first."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for number, request in enumerate(requests):
        members[request.fingerprint].append(number)
    classes = []
    for fingerprint, numbers in members.items():
        request = requests[numbers[0]]
        options = tuple(enumerate(request.alternatives))
        classes.append(MemberClass(options, request.is_ordered, tuple(numbers), fingerprint))
    return sorted(classes, key=lambda members: (-members.size_milli, members.members))


@dataclass(slots=True)
class _Chain:
    """Members of a class placed one after the other on a worker in a state, as far as it was asked."""

    fits: list[tuple[int, Fit]]
    states: list[OccupancyState]
    """The states before the first member and after each."""
    is_full: bool = False


class MemberChains:
    """Places members one after the other on a worker, beside what is reserved, and remembers the results by state."""

    def __init__(self, index: WorkerIndex, reserved: ReservedCapacity | None, now: datetime) -> None:
        self._index, self._reserved, self._now_s = index, reserved, now.timestamp()
        self._chains: dict[tuple[OccupancyState, object], _Chain] = {}

    def chain(
        self, state: OccupancyState, members: MemberClass, limit: int
    ) -> tuple[list[tuple[int, Fit]], OccupancyState]:
        """As many members as fit one after the other on a worker, up to the limit; and the state after that."""
        chain = self._chains.get((state, members.key))
        if chain is None:
            chain = self._chains[state, members.key] = _Chain([], [state])
        while len(chain.fits) < limit and not chain.is_full:
            best = self._best_option(chain.states[-1], members)
            if best is None:
                chain.is_full = True
                break
            chain.fits.append(best)
            chain.states.append(self._index.matcher.state_after(chain.states[-1], best[1], self._now_s))
        number = min(limit, len(chain.fits))
        return chain.fits[:number], chain.states[number]

    def capacity(self, workers: Mapping[OccupancyState, int], members: MemberClass, limit: int) -> int:
        """How many members fit on these workers (state → number of workers). Each worker counts at most `limit`."""
        return sum(number * len(self.chain(state, members, limit)[0]) for state, number in workers.items())

    def _best_option(self, state: OccupancyState, members: MemberClass) -> tuple[int, Fit] | None:
        best: tuple[int, Fit] | None = None
        for number, alternative in members.options:
            result = self._index.match(alternative, state, self._reserved)
            if isinstance(result, Fit) and (best is None or result.score > best[1].score):
                best = (number, result)
                if members.is_ordered:
                    break
        return best


class MemberPlacement(NamedTuple):
    """One placed member: its number in the gang, the worker, the number of the alternative, and the fit."""

    member: int
    worker: int
    alternative: int
    fit: Fit


@dataclass(frozen=True, slots=True)
class GangFit:
    """Where a whole gang fits; the placements are in the order in which they must be taken."""

    placements: tuple[MemberPlacement, ...]
    bottleneck: Bottleneck | None
    """None if the gang has only one device."""

    @property
    def workers(self) -> tuple[int, ...]:
        """Its workers, ascending."""
        return tuple(sorted({placement.worker for placement in self.placements}))


class _RankedPlacement(NamedTuple):
    """A possible placement; the smallest one, in the order of the fields, is the best."""

    slowness: float
    """Bytes per second of the bottleneck, negative."""
    workers: int
    badness: float
    """The score, negative."""
    ids: tuple[int, ...]
    placements: tuple[MemberPlacement, ...]


class GangPlacer:
    """Tries gangs on workers in their current states, beside what is reserved, and changes nothing there."""

    def __init__(
        self, index: WorkerIndex, regions: Regions, now: datetime, reserved: ReservedCapacity | None = None
    ) -> None:
        self._index = index
        self._states = index.states
        self._regions = regions
        self._chains = MemberChains(index, reserved, now)
        self._ranked: defaultdict[tuple[Level | None, int], dict[object, _RankedPlacement | None]] = defaultdict(dict)
        """(level, number of a region), or (None, worker) → what is asked → its placement there."""
        self._version = index.version

    def place(self, requests: Sequence[DeviceRequest]) -> GangFit | None:
        """The best placement of a gang with these requests, or None if it does not fit as a whole.

        Members with equal requests are placed by the same alternative, because the slowest member delays the others. Of
        ordered alternatives, it is the first one that all of them can have.
        """
        self._catch_up()
        options: list[_RankedPlacement] = []
        if len({request.fingerprint for request in requests}) == 1:
            for number, alternative in enumerate(requests[0].alternatives):
                members = equal_members(number, alternative, len(requests))
                options += self._best([members], gang_level([alternative]))
                if options and requests[0].is_ordered:
                    break
        else:
            alternatives = [alternative for request in requests for alternative in request.alternatives]
            options = self._best(member_classes(requests), gang_level(alternatives))
        if not options:
            return None
        best = min(options)
        return GangFit(best.placements, self._bottleneck(best.placements))

    def member_capacity(self, alternative: Alternative, limit: int) -> int:
        """How many members with this alternative can be placed at the same time, up to a limit, within its level."""
        members = equal_members(0, alternative, limit)
        regions = self._regions.at[gang_level([alternative])]
        capacities = (self._chains.capacity(self._count_states(region), members, limit) for region in regions)
        return min(limit, max(capacities, default=0))

    def _catch_up(self) -> None:
        """Forget the placements on workers that changed."""
        for worker in self._index.changed_since(self._version):
            self._ranked.pop((None, worker), None)
            for level in WIDE_LEVELS:
                self._ranked.pop((level, self._regions.number[level][worker]), None)
        self._version = self._index.version

    def _best(self, classes: Sequence[MemberClass], widest: Level) -> list[_RankedPlacement]:
        """The best placement of all members within that level; empty if there is none."""
        requested = tuple((members.key, members.members) for members in classes)
        alone = (self._on_worker(classes, worker, requested) for worker in self._index.first_workers())
        best = min((ranked for ranked in alone if ranked is not None), default=None)
        for level in WIDE_LEVELS[: WIDE_LEVELS.index(widest) + 1]:
            for number, speeds in self._regions.shared[level]:
                if best is not None and speeds[0] < -best.slowness:
                    break
                ranked = self._in_region(classes, level, number, speeds, requested)
                if ranked is not None and (best is None or ranked < best):
                    best = ranked
        return [best] if best else []

    def _on_worker(self, classes: Sequence[MemberClass], worker: int, requested: object) -> _RankedPlacement | None:
        cached = self._ranked[None, worker]
        if requested not in cached:
            cached[requested] = self._pack(classes, [worker]) if self._may_fit(classes, [worker]) else None
        return cached[requested]

    def _in_region(
        self, classes: Sequence[MemberClass], level: Level, number: int, speeds: Sequence[float], requested: object
    ) -> _RankedPlacement | None:
        """The placement of a gang in a region, on its fastest workers with enough room together."""
        cached = self._ranked[level, number]
        if requested not in cached:
            region = self._regions.at[level][number]
            cached[requested] = None
            if self._may_fit(classes, region):
                parts = (self._regions.fast_part(region, level, speed) for speed in speeds)
                packed = (self._pack(classes, part) for part in parts)
                cached[requested] = next((ranked for ranked in packed if ranked is not None), None)
        return cached[requested]

    def _may_fit(self, classes: Sequence[MemberClass], workers: Sequence[int]) -> bool:
        """Whether the workers have room for each class without the others."""
        states = self._count_states(workers)
        sizes = ((members, len(members.members)) for members in classes)
        return all(self._chains.capacity(states, members, size) >= size for members, size in sizes)

    def _count_states(self, workers: Iterable[int]) -> Counter[OccupancyState]:
        return Counter(self._states[worker] for worker in workers)

    def _pack(self, classes: Sequence[MemberClass], workers: Iterable[int]) -> _RankedPlacement | None:
        """All members on few of these workers, or None."""
        by_state: defaultdict[OccupancyState, list[int]] = defaultdict(list)
        for worker in workers:
            by_state[self._states[worker]].append(worker)
        placements: list[MemberPlacement] = []
        for members in classes:
            unplaced = list(members.members)
            while unplaced:
                fullest = self._fullest(members, by_state, len(unplaced))
                if fullest is None:
                    return None
                state, fits, after = fullest
                worker = by_state[state].pop(0)
                if not by_state[state]:
                    del by_state[state]
                insort(by_state[after], worker)
                placements += (MemberPlacement(unplaced.pop(0), worker, number, fit) for number, fit in fits)
        return self._rank(placements)

    def _rank(self, placements: Sequence[MemberPlacement]) -> _RankedPlacement:
        ids = tuple(sorted({placement.worker for placement in placements}))
        if len(ids) > 1:
            speed = self._regions.speed(ids)
        else:
            slowest = self._bottleneck(placements)
            speed = math.inf if slowest is None else slowest.bytes_per_s
        score = sum(placement.fit.score for placement in placements)
        return _RankedPlacement(-speed, len(ids), -score, ids, tuple(placements))

    def _fullest(
        self, members: MemberClass, by_state: Mapping[OccupancyState, Sequence[int]], limit: int
    ) -> tuple[OccupancyState, list[tuple[int, Fit]], OccupancyState] | None:
        """The state whose workers take most members, up to the limit; then the best score, then the first worker."""
        best, best_key = None, None
        for state, workers in by_state.items():
            fits, after = self._chains.chain(state, members, limit)
            if fits:
                key = (-len(fits), -sum(fit.score for _, fit in fits), workers[0])
                if best_key is None or key < best_key:
                    best, best_key = (state, fits, after), key
        return best

    def _bottleneck(self, placements: Iterable[MemberPlacement]) -> Bottleneck | None:
        positions: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for placement in placements:
            positions[placement.worker] |= dict.fromkeys(placement.fit.chosen)
        parts = []
        for worker, chosen in sorted(positions.items()):
            entry = self._index.entries[worker]
            devices = {device.id: device for device in entry.worker.devices}
            parts.append((entry.worker, [devices[entry.device_ids[position]] for position in chosen]))
        return bottleneck(parts)


def gang_level(alternatives: Iterable[Alternative]) -> Level:
    """The farthest level that members placed by these alternatives may share."""
    levels = [Level.ANYWHERE]
    for alternative in alternatives:
        topology = alternative.topology
        if topology is not None and topology.budget_s is None and not topology.level.is_within_worker:
            levels.append(topology.level)
    return min(levels, key=lambda level: level.rank)


_ANY_TIME = datetime.fromtimestamp(0, UTC)
"""The time of a grant makes no difference on an idle worker."""


class IdleCluster:
    """The workers as if nothing were leased. It holds for every index of the same workers."""

    def __init__(self, entries: list[WorkerEntry], matcher: Matcher) -> None:
        self.entries = entries
        self._matcher = matcher
        self._fits: dict[tuple[str, ...], bool] = {}

    @cached_property
    def regions(self) -> Regions:
        """Where the workers are."""
        return Regions(self.entries)

    @cached_property
    def _placer(self) -> GangPlacer:
        idle = Snapshot(0, tuple(entry.worker for entry in self.entries))
        return GangPlacer(WorkerIndex(self._matcher, idle), self.regions, _ANY_TIME)

    def fits_when_idle(self, requests: Sequence[DeviceRequest]) -> bool:
        """Whether a gang with these requests could be placed on the workers, with the devices that are healthy now."""
        key = tuple(request.fingerprint for request in requests)
        if key not in self._fits:
            self._fits[key] = self._placer.place(requests) is not None
        return self._fits[key]

    def member_capacity(self, alternative: Alternative, limit: int) -> int:
        """How many members with this alternative fit at the same time, up to a limit."""
        return self._placer.member_capacity(alternative, limit)

    def max_members(self, alternative: Alternative) -> int:
        """An upper bound of the members that could be placed at the same time, with all workers online and healthy."""
        bounds: dict[Shape, int] = {}
        regions = self.regions.at[gang_level([alternative])]
        sums = (sum(self._bound(self.entries[number], alternative, bounds) for number in region) for region in regions)
        return max(sums, default=0)

    def _bound(self, entry: WorkerEntry, alternative: Alternative, bounds: dict[Shape, int]) -> int:
        shape = entry.shape
        if shape not in bounds:
            suitable = self._matcher.feasibility(alternative, shape).suitable
            if alternative.kind == "cpu":
                bounds[shape] = max((len(shape.devices[p].cores) // alternative.count for p in suitable), default=0)
            elif alternative.share is not None:
                bounds[shape] = len(suitable) * (MILLI_PER_DEVICE // alternative.share_milli)
            else:
                bounds[shape] = len(suitable) // alternative.count
        return bounds[shape]
