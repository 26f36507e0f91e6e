"""All workers, grouped by state: what a decision moves, and what the next decision starts from.

A placement moves one worker from one state to another, and so does a lease that ended between two
decisions. Rankings and censuses (`ranking.py`) catch up with such moves when they are asked again. So a
decision costs the workers that changed, not those that exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush

from hetero_airflow.matching.matcher import Fit, Matcher, MatchResult, OccupancyState, ShapeReservation
from hetero_airflow.matching.ranking import Census, MatchResults, Ranking
from hetero_airflow.matching.shapes import Shape, Shapes, WorkerEntry
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker, WorkerState

_NOTHING: Mapping[str, DeviceUsage] = {}


@dataclass(frozen=True, slots=True, eq=False)
class ReservedCapacity:
    """What must be left free on every worker for a request that comes first; equal ones of a fleet are one object."""

    by_shape: Mapping[Shape, ShapeReservation]
    """Nothing is kept on workers of a shape that is absent."""
    by_worker: Mapping[int, ShapeReservation] = field(default_factory=dict)
    """On marked workers this instead; of a marked one that is absent, as of others of its shape."""

    def on(self, state: OccupancyState) -> ShapeReservation | None:
        """What must be left free on a worker in that state."""
        if state.mark is not None and state.mark in self.by_worker:
            return self.by_worker[state.mark]
        return self.by_shape.get(state.shape)


class WorkerGroup:
    """The workers that are in one state at the moment: how many, and which one comes first."""

    __slots__ = ("heap", "size")

    def __init__(self) -> None:
        self.size = 0
        self.heap: list[int] = []
        """Every worker of the group, the first of them on top, and some that have left it."""


class WorkerIndex:
    """The workers of a snapshot, ordered by id, less what has been placed on them since.

    Made once for many decisions: `see` takes in the next snapshot. What it remembers changes no answer.
    """

    def __init__(self, matcher: Matcher, snapshot: Snapshot) -> None:
        self.matcher = matcher
        self.entries: list[WorkerEntry] = []
        self.states: list[OccupancyState] = []
        self.groups: dict[OccupancyState, WorkerGroup] = {}
        self._workers: tuple[Worker, ...] = ()
        self._ids: list[str] = []
        self._shapes_of: Shapes | None = None
        self._present: list[OccupancyState] = []
        """What the snapshot says, where `states` has what was placed besides."""
        self._used: list[Mapping[str, DeviceUsage]] = []
        self._placed: set[int] = set()
        self._log: list[int] = []
        """Workers that moved, in order, since `_base` moves."""
        self._base = self._began = 0
        self._online: frozenset[Shape] = frozenset()
        self._servable: dict[str, bool] = {}
        self._keeps: dict[object, ReservedCapacity] = {}
        self._rankings: dict[tuple[str, ReservedCapacity | None], Ranking] = {}
        self._censuses: dict[tuple[str, ReservedCapacity | None], Census] = {}
        self.see(snapshot)

    # -- between decisions ---------------------------------------------------------------------------------------------

    def see(self, snapshot: Snapshot) -> None:
        """Take in a snapshot: what was placed since the last one is undone, what is different in it is moved.

        Costs a comparison of pointers a worker, and work for each worker of which something was leased or
        freed; a store helps by handing out the same objects for the workers and usage that did not change.
        """
        self._forget_unasked()
        self.matcher.trim()
        by_worker = UsageByWorker.of(snapshot.usage).by_worker
        is_new = self.matcher.shapes is not self._shapes_of
        changed: set[int] = set()
        if is_new or snapshot.workers is not self._workers:
            entries = [self.matcher.entry(worker) for worker in sorted(snapshot.workers, key=lambda worker: worker.id)]
            ids = [entry.worker.id for entry in entries]
            is_new = is_new or ids != self._ids
            if not is_new:
                changed.update(number for number, entry in enumerate(entries) if entry is not self.entries[number])
            self._workers, self._ids, self._shapes_of = snapshot.workers, ids, self.matcher.shapes
            self._entry(entries)
        used = [by_worker.get(worker_id, _NOTHING) for worker_id in self._ids]
        if is_new:
            self._start(used)
        else:
            pairs = zip(used, self._used, strict=True)
            changed.update(number for number, (new, old) in enumerate(pairs) if new is not old)
            for number in changed:
                self._present[number] = self.matcher.present(self.entries[number], used[number])
            for number in changed | self._placed:
                self._move(number, self._present[number])
        self._used = used
        self._placed.clear()

    def _entry(self, entries: list[WorkerEntry]) -> None:
        """Take other entries, and forget what depends on which shapes there are."""
        self.entries = entries
        self._online = frozenset(entry.shape for entry in entries if entry.worker.state is not WorkerState.LOST)
        self._servable.clear()
        self._keeps.clear()
        self._rankings = {key: ranking for key, ranking in self._rankings.items() if key[1] is None}
        self._censuses = {key: census for key, census in self._censuses.items() if key[1] is None}

    def _start(self, used: list[Mapping[str, DeviceUsage]]) -> None:
        """Group all workers, and forget what was asked of others."""
        self._present = [self.matcher.present(entry, usage) for entry, usage in zip(self.entries, used, strict=True)]
        self.states = self._present.copy()
        self.groups = {}
        for number, state in enumerate(self.states):
            self._join(number, state)
        self._rankings, self._censuses = {}, {}

    def _forget_unasked(self) -> None:
        """Forget what the last decision did not ask for, and the moves that nobody has to catch up with."""
        self._rankings = {key: ranking for key, ranking in self._rankings.items() if ranking.version >= self._began}
        self._censuses = {key: census for key, census in self._censuses.items() if census.version >= self._began}
        version = self.version
        del self._log[: self._began - self._base]
        self._base, self._began = self._began, version

    # -- within a decision ---------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows with each worker that moves: equal questions at one version have equal answers."""
        return self._base + len(self._log)

    def changed_since(self, version: int) -> Sequence[int]:
        """The workers that moved since that version, some more than once."""
        return self._log[version - self._base :]

    def outcome(
        self, alternative: Alternative, state: OccupancyState, keep: ReservedCapacity | None = None
    ) -> MatchResult:
        """What is true of the alternative on workers of the state, given what is kept."""
        return self.matcher.outcome(alternative, state, None if keep is None else keep.on(state))

    def lowest(self, state: OccupancyState) -> int | None:
        """The worker of the state that comes first by id."""
        group = self.groups.get(state)
        return None if group is None else group.heap[0]

    def first_workers(self) -> list[int]:
        """The worker that comes first by id of each state that there is."""
        return [group.heap[0] for group in self.groups.values()]

    def ranking(self, alternative: Alternative, keep: ReservedCapacity | None = None) -> Ranking:
        """The workers where the alternative fits beside what is kept, ranked."""
        key = (alternative.key, keep)
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rankings[key] = Ranking(self, MatchResults(self, alternative, keep))
        return ranking

    def census(self, alternative: Alternative, keep: ReservedCapacity | None = None) -> Census:
        """The workers where the alternative does not fit beside what is kept, counted by what is in the way."""
        key = (alternative.key, keep)
        census = self._censuses.get(key)
        if census is None:
            census = self._censuses[key] = Census(self, self.ranking(alternative, keep).outcomes)
        return census

    def is_servable(self, alternative: Alternative) -> bool:
        """Whether any worker as it is now, online and well, could run it if it were idle."""
        known = self._servable.get(alternative.key)
        if known is None:
            known = any(self.matcher.feasibility(alternative, shape).is_servable for shape in self._online)
            self._servable[alternative.key] = known
        return known

    def claims(self, number: int, fit: Fit) -> tuple[Claim, ...]:
        """What a fit takes of a worker, by device id."""
        ids = self.entries[number].device_ids
        return tuple([Claim(ids[position], need.share_milli, need.memory_bytes) for position, need in fit.takes])

    def take(self, number: int, fit: Fit, now: datetime) -> None:
        """Note that a fit of the worker's state was placed on it."""
        self._placed.add(number)
        self._move(number, self.matcher.taken(self.states[number], fit, now.timestamp()))

    def put(self, number: int, state: OccupancyState) -> None:
        """Note that for the rest of the decision a worker is to be seen in that state."""
        self._placed.add(number)
        self._move(number, state)

    def mark(self, number: int) -> None:
        """Tell a worker apart from its equals for this decision, so that `ReservedCapacity.by_worker` can name it."""
        state = self.states[number]
        self.put(number, self.matcher.state(state.shape, state.is_lost, state.held, number))

    def reserved_capacity_for(self, alternatives: tuple[Alternative, ...], members: int = 1) -> ReservedCapacity:
        """What to leave free, lest so many requests with these alternatives be delayed; see `Matcher.kept`."""
        key = (members, *(alternative.key for alternative in alternatives))
        keep = self._keeps.get(key)
        if keep is None:
            kept = {shape: self.matcher.kept(alternatives, shape, members) for shape in self._online}
            by_shape = {shape: one for shape, one in kept.items() if one is not None}
            keep = self._keeps.setdefault(frozenset(by_shape.items()), ReservedCapacity(by_shape))
            self._keeps[key] = keep
        return keep

    def _move(self, number: int, after: OccupancyState) -> None:
        before = self.states[number]
        if before is after:
            return
        self.states[number] = after
        self._log.append(number)
        group = self.groups[before]
        group.size -= 1
        if group.size == 0:
            del self.groups[before]
        elif group.heap[0] == number:
            while self.states[group.heap[0]] is not before:
                heappop(group.heap)
        self._join(number, after)

    def _join(self, number: int, state: OccupancyState) -> None:
        group = self.groups.get(state)
        if group is None:
            group = self.groups[state] = WorkerGroup()
        group.size += 1
        heappush(group.heap, number)
        if len(group.heap) > 2 * group.size + 64:
            group.heap = sorted({member for member in group.heap if self.states[member] is state})
