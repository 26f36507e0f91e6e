"""Where all members of a gang fit at the same time, on the workers that reach each other fastest. Takes nothing.

Scopes are tried from the nearest: one worker, one host, one rack, one site, anywhere; in each first the
workers that reach others fastest, then slower ones too. Of what fits, the placement with the fastest
bottleneck is taken, then the one on the fewest workers, then the one with the greatest score, then the
workers first by id. A worker counts as fast as its slowest accelerator.

Within a scope the members are packed class by class, the hungriest first, each class onto the worker that takes
most of what is left of it. For equal members this finds a packing wherever there is one, and on the
fewest workers: how many a worker takes does not depend on the others. For unequal members it is vector
bin packing, which is NP-hard, and the packing is a first-fit-decreasing heuristic: it may miss one that exists.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from hetero_airflow.matching.bandwidth import Bottleneck, bottleneck
from hetero_airflow.matching.feasibility import device_count
from hetero_airflow.matching.gangs.cluster_state import ClusterState
from hetero_airflow.matching.gangs.regions import WIDE_LEVELS, Regions
from hetero_airflow.matching.matcher import Fit, Matcher, MatchResult, OccupancyState
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.topology import Level


class MemberPlacement(NamedTuple):
    """One member placed: its number in the gang, the worker, by which alternative, and where on it."""

    member: int
    worker: int
    alternative: int
    fit: Fit


@dataclass(frozen=True, slots=True)
class GangFit:
    """Where a whole gang fits; seatings in the order in which they are to be taken."""

    seatings: tuple[MemberPlacement, ...]
    bottleneck: Bottleneck | None
    """None where the gang has only one device."""

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers it is on, ascending."""
        return tuple(sorted({seating.worker for seating in self.seatings}))


class _RankedPlacement(NamedTuple):
    """A possible placement; the first of several, in the order of the fields, is the best."""

    slowness: float
    """Bytes a second of the bottleneck, negative."""
    workers: int
    badness: float
    """The score, negative."""
    ids: tuple[int, ...]
    seatings: tuple[MemberPlacement, ...]


class _MemberClass(NamedTuple):
    """Members that ask for the same."""

    ways: tuple[tuple[int, Alternative], ...]
    """The alternatives that they may be placed by, with their numbers."""
    is_ordered: bool
    members: tuple[int, ...]
    key: object
    """Equal for classes that ask for the same."""


@dataclass(slots=True)
class _MemberChain:
    """Members of a class placed one after the other on a worker of a state, as far as anyone asked."""

    fits: list[tuple[int, Fit]]
    states: list[OccupancyState]
    """Before the first, and after each."""
    is_full: bool = False


class GangPlacer:
    """Where gangs are tried on workers in their present states. Nothing here moves them.

    :param outcome: what is true of an alternative on workers of a state, as `WorkerIndex.outcome`
    """

    def __init__(
        self,
        standing: ClusterState,
        regions: Regions,
        matcher: Matcher,
        outcome: Callable[[Alternative, OccupancyState], MatchResult],
        now: datetime,
    ) -> None:
        self._standing = standing
        self._entries = standing.entries
        self._states = standing.states
        self._regions = regions
        self._matcher = matcher
        self._outcome = outcome
        self._now_s = now.timestamp()
        self._chains: dict[tuple[OccupancyState, object], _MemberChain] = {}
        self._packings: defaultdict[tuple[Level | None, int], dict[object, _RankedPlacement | None]] = defaultdict(dict)
        """Level and number of a region, or none and a worker → what is asked → where it fits there."""
        self._version = standing.version

    def place(self, requests: Sequence[DeviceRequest]) -> GangFit | None:
        """The best placement of a gang with these requests, or None if it does not fit as a whole.

        Members that ask for the same get it by the same alternative, since the slowest holds up the others;
        of ordered alternatives, the first that all of them can have.
        """
        self._catch_up()
        if len({request.fingerprint for request in requests}) == 1:
            found: list[_RankedPlacement] = []
            for number, alternative in enumerate(requests[0].alternatives):
                alike = _equal_members(number, alternative, len(requests))
                found += self._best([alike], gang_level([alternative]))
                if found and requests[0].is_ordered:
                    break
        else:
            alternatives = [alternative for request in requests for alternative in request.alternatives]
            found = self._best(_member_classes(requests), gang_level(alternatives))
        if not found:
            return None
        best = min(found)
        return GangFit(best.seatings, self._bottleneck(best.seatings))

    def room(self, alternative: Alternative, limit: int) -> int:
        """How many members that ask for this could be placed at the same time, up to a limit, within its level."""
        level = gang_level([alternative])
        return max((self._room(region, alternative, limit) for region in self._regions.at(level)), default=0)

    def _room(self, region: Sequence[int], alternative: Alternative, limit: int) -> int:
        alike = _equal_members(0, alternative, limit)
        sizes = Counter(self._states[worker] for worker in region)
        return min(limit, sum(number * len(self._chain(state, alike, limit)[0]) for state, number in sizes.items()))

    def _catch_up(self) -> None:
        """Forget what was found where workers have moved."""
        for worker in self._standing.changed_since(self._version):
            self._packings.pop((None, worker), None)
            for level in WIDE_LEVELS:
                self._packings.pop((level, self._regions.number(level, worker)), None)
        self._version = self._standing.version

    def _best(self, classes: Sequence[_MemberClass], widest: Level) -> list[_RankedPlacement]:
        """The best placement of all within that level; empty if there is none."""
        asked = tuple((one.key, one.members) for one in classes)
        alone = (self._on_worker(classes, worker, asked) for worker in self._standing.first_workers())
        best = min((packing for packing in alone if packing is not None), default=None)
        for level in WIDE_LEVELS[: WIDE_LEVELS.index(widest) + 1]:
            for number, speeds in self._regions.shared(level):
                if best is not None and speeds[0] < -best.slowness:
                    break
                found = self._in_region(classes, level, number, speeds, asked)
                if found is not None and (best is None or found < best):
                    best = found
        return [best] if best else []

    def _on_worker(self, classes: Sequence[_MemberClass], worker: int, asked: object) -> _RankedPlacement | None:
        known = self._packings[None, worker]
        if asked not in known:
            fits = self._may_fit(classes, [self._states[worker]])
            known[asked] = self._pack(classes, [worker]) if fits else None
        return known[asked]

    def _in_region(
        self, classes: Sequence[_MemberClass], level: Level, number: int, speeds: Sequence[float], asked: object
    ) -> _RankedPlacement | None:
        """Where a gang fits in a region, on the fastest of its workers that have room for it together."""
        known = self._packings[level, number]
        if asked not in known:
            region = self._regions.at(level)[number]
            known[asked] = None
            if self._may_fit(classes, [self._states[worker] for worker in region]):
                parts = (self._regions.fast_part(region, level, speed) for speed in speeds)
                packings = (self._pack(classes, part) for part in parts)
                known[asked] = next((packing for packing in packings if packing is not None), None)
        return known[asked]

    def _may_fit(self, classes: Sequence[_MemberClass], states: Iterable[OccupancyState]) -> bool:
        """Whether workers of these states have room for each class, if they had none for the others."""
        sizes = Counter(states)
        for one in classes:
            needed = len(one.members)
            if sum(len(self._chain(state, one, needed)[0]) * number for state, number in sizes.items()) < needed:
                return False
        return True

    def _pack(self, classes: Sequence[_MemberClass], workers: Iterable[int]) -> _RankedPlacement | None:
        """All members on these workers, few of them, or None."""
        by_state: defaultdict[OccupancyState, list[int]] = defaultdict(list)
        for worker in workers:
            by_state[self._states[worker]].append(worker)
        seatings: list[MemberPlacement] = []
        for one in classes:
            left = list(one.members)
            while left:
                fullest = self._fullest(one, by_state, len(left))
                if fullest is None:
                    return None
                state, fits, after = fullest
                worker = by_state[state].pop(0)
                if not by_state[state]:
                    del by_state[state]
                insort(by_state[after], worker)
                seatings += (MemberPlacement(left.pop(0), worker, number, fit) for number, fit in fits)
        ids = tuple(sorted({seating.worker for seating in seatings}))
        if len(ids) > 1:
            speed = self._regions.speed(ids)
        else:
            found = self._bottleneck(seatings)
            speed = math.inf if found is None else found.bytes_per_s
        return _RankedPlacement(-speed, len(ids), -sum(seating.fit.score for seating in seatings), ids, tuple(seatings))

    def _fullest(
        self, one: _MemberClass, by_state: Mapping[OccupancyState, Sequence[int]], limit: int
    ) -> tuple[OccupancyState, list[tuple[int, Fit]], OccupancyState] | None:
        """The state whose workers take most members, up to the limit; then the best score, then the first worker."""
        best, best_key = None, None
        for state, workers in by_state.items():
            fits, after = self._chain(state, one, limit)
            if fits:
                key = (-len(fits), -sum(fit.score for _, fit in fits), workers[0])
                if best_key is None or key < best_key:
                    best, best_key = (state, fits, after), key
        return best

    def _chain(
        self, state: OccupancyState, one: _MemberClass, limit: int
    ) -> tuple[list[tuple[int, Fit]], OccupancyState]:
        """Up to so many members placed one after the other on a worker, as many as fit; and the state after that."""
        chain = self._chains.get((state, one.key))
        if chain is None:
            chain = self._chains[state, one.key] = _MemberChain([], [state])
        while len(chain.fits) < limit and not chain.is_full:
            found = self._way(chain.states[-1], one)
            if found is None:
                chain.is_full = True
                break
            chain.fits.append(found)
            chain.states.append(self._matcher.taken(chain.states[-1], found[1], self._now_s))
        number = min(limit, len(chain.fits))
        return chain.fits[:number], chain.states[number]

    def _way(self, state: OccupancyState, one: _MemberClass) -> tuple[int, Fit] | None:
        best: tuple[int, Fit] | None = None
        for number, alternative in one.ways:
            outcome = self._outcome(alternative, state)
            if isinstance(outcome, Fit) and (best is None or outcome.score > best[1].score):
                best = (number, outcome)
                if one.is_ordered:
                    break
        return best

    def _bottleneck(self, seatings: Iterable[MemberPlacement]) -> Bottleneck | None:
        positions: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for seating in seatings:
            positions[seating.worker] |= dict.fromkeys(seating.fit.chosen)
        parts = []
        for worker, chosen in sorted(positions.items()):
            entry = self._entries[worker]
            devices = {device.id: device for device in entry.worker.devices}
            parts.append((entry.worker, [devices[entry.device_ids[position]] for position in chosen]))
        return bottleneck(parts)


def gang_level(alternatives: Iterable[Alternative]) -> Level:
    """The farthest apart that members placed by these alternatives may be."""
    levels = [Level.ANYWHERE]
    for alternative in alternatives:
        topology = alternative.topology
        if topology is not None and topology.budget_s is None and not topology.level.is_within_worker:
            levels.append(topology.level)
    return min(levels, key=lambda level: level.rank)


def _equal_members(number: int, alternative: Alternative, members: int) -> _MemberClass:
    """All members of a gang, to be placed by one alternative."""
    return _MemberClass(((number, alternative),), True, tuple(range(members)), (number, alternative.key))


def _member_classes(requests: Sequence[DeviceRequest]) -> list[_MemberClass]:
    """Members that ask for the same together, the hungriest first."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for number, request in enumerate(requests):
        members[request.fingerprint].append(number)
    classes = []
    for fingerprint, numbers in members.items():
        request = requests[numbers[0]]
        classes.append(
            _MemberClass(tuple(enumerate(request.alternatives)), request.is_ordered, tuple(numbers), fingerprint)
        )
    return sorted(classes, key=lambda one: (-_size(one), one.members))


def _size(one: _MemberClass) -> int:
    return max(device_count(alternative) * alternative.share_milli for _, alternative in one.ways)
