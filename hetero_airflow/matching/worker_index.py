"""The worker index: all workers grouped by state, during one decision and from one decision to the next.

A placement changes the state of one worker, and so does a lease that ended between two decisions. Rankings and
rejection counts (`ranking`) take in such changes when they are next asked. So the cost of a decision depends on the
workers that changed, not on all workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush

from hetero_airflow.matching.matcher import Fit, Matcher, MatchResult, OccupancyState, ShapeReservation
from hetero_airflow.matching.ranking import MatchResults, Ranking, RejectionCounts
from hetero_airflow.matching.shapes import Shape, Shapes, WorkerEntry
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot, UsageByWorker
from hetero_airflow.model.worker import Worker, WorkerState

_NO_USAGE: Mapping[str, DeviceUsage] = {}


@dataclass(frozen=True, slots=True, eq=False)
class ReservedCapacity:
    """What must stay free on every worker for an earlier request. One index has one object for equal reservations."""

    by_shape: Mapping[Shape, ShapeReservation]
    """Nothing is reserved on workers of an absent shape."""
    by_worker: Mapping[int, ShapeReservation] = field(default_factory=dict)
    """On marked workers this applies instead; an absent marked worker counts like the others of its shape."""

    def on(self, state: OccupancyState) -> ShapeReservation | None:
        """What must stay free on a worker in that state."""
        if state.mark is not None and state.mark in self.by_worker:
            return self.by_worker[state.mark]
        return self.by_shape.get(state.shape)


class WorkerGroup:
    """The workers in one state: their number, and the first one."""

    __slots__ = ("heap", "size")

    def __init__(self) -> None:
        self.size = 0
        self.heap: list[int] = []
        """Every worker of the group, the first one on top, and some workers that have left it."""


class WorkerIndex:
    """The workers of a snapshot, ordered by id, minus what was placed on them since. A worker is known by its number.

    One index serves many decisions: `update` takes in the next snapshot. What it remembers never changes an answer.
    """

    def __init__(self, matcher: Matcher, snapshot: Snapshot) -> None:
        self.matcher = matcher
        self.entries: list[WorkerEntry] = []
        self.numbers: dict[str, int] = {}
        """Worker id → number of its entry."""
        self.states: list[OccupancyState] = []
        self.groups: dict[OccupancyState, WorkerGroup] = {}
        self._workers: tuple[Worker, ...] = ()
        self._ids: list[str] = []
        self._shapes: Shapes | None = None
        self._snapshot_states: list[OccupancyState] = []
        """The states in the snapshot; `states` also has what was placed since."""
        self._usage: list[Mapping[str, DeviceUsage]] = []
        self._placed: set[int] = set()
        self._log: list[int] = []
        """Workers that changed, in order, after the first `_base` changes."""
        self._base = self._decision_start = 0
        self._online: frozenset[Shape] = frozenset()
        self._servable: dict[str, bool] = {}
        self._reserved: dict[object, ReservedCapacity] = {}
        self._rankings: dict[tuple[str, ReservedCapacity | None], Ranking] = {}
        self._rejection_counts: dict[tuple[str, ReservedCapacity | None], RejectionCounts] = {}
        self.update(snapshot)

    # -- between decisions ---------------------------------------------------------------------------------------------

    def update(self, snapshot: Snapshot) -> None:
        """Take in a snapshot: undo what was placed since the last one, and apply what is different in the new one.

        It compares one pointer per worker, and does work only for workers with new or ended leases. A store helps if it
        returns the same objects for workers and usage that did not change.
        """
        self._forget_unused()
        self.matcher.trim()
        by_worker = UsageByWorker.of(snapshot.usage).by_worker
        is_new = self.matcher.shapes is not self._shapes
        changed: set[int] = set()
        if is_new or snapshot.workers is not self._workers:
            entries = [self.matcher.entry(worker) for worker in sorted(snapshot.workers, key=lambda worker: worker.id)]
            ids = [entry.worker.id for entry in entries]
            is_new = is_new or ids != self._ids
            if not is_new:
                changed.update(number for number, entry in enumerate(entries) if entry is not self.entries[number])
            self._workers, self._ids, self._shapes = snapshot.workers, ids, self.matcher.shapes
            self._set_entries(entries)
        usage = [by_worker.get(worker_id, _NO_USAGE) for worker_id in self._ids]
        if is_new:
            self._start(usage)
        else:
            pairs = zip(usage, self._usage, strict=True)
            changed.update(number for number, (new, old) in enumerate(pairs) if new is not old)
            for number in changed:
                self._snapshot_states[number] = self.matcher.state_of(self.entries[number], usage[number])
            for number in changed | self._placed:
                self._change(number, self._snapshot_states[number])
        self._usage = usage
        self._placed.clear()

    def _set_entries(self, entries: list[WorkerEntry]) -> None:
        """Set the workers, and forget what depends on their shapes."""
        self.entries = entries
        self.numbers = {entry.worker.id: number for number, entry in enumerate(entries)}
        self._online = frozenset(entry.shape for entry in entries if entry.worker.state is not WorkerState.LOST)
        self._servable.clear()
        self._reserved.clear()
        self._rankings = {key: ranking for key, ranking in self._rankings.items() if key[1] is None}
        self._rejection_counts = {key: counts for key, counts in self._rejection_counts.items() if key[1] is None}

    def _start(self, usage: list[Mapping[str, DeviceUsage]]) -> None:
        """Group all workers, and forget all rankings and counts of rejections."""
        pairs = zip(self.entries, usage, strict=True)
        self._snapshot_states = [self.matcher.state_of(entry, used) for entry, used in pairs]
        self.states = self._snapshot_states.copy()
        self.groups = {}
        for number, state in enumerate(self.states):
            self._join(number, state)
        self._rankings, self._rejection_counts = {}, {}

    def _forget_unused(self) -> None:
        """Forget what the last decision did not use, and the changes that nothing has to take in any more."""
        start = self._decision_start
        self._rankings = {key: ranking for key, ranking in self._rankings.items() if ranking.version >= start}
        self._rejection_counts = {
            key: counts for key, counts in self._rejection_counts.items() if counts.version >= start
        }
        version = self.version
        del self._log[: start - self._base]
        self._base, self._decision_start = start, version

    # -- within a decision ---------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """A number that grows with each change of a worker: equal questions at one version have equal answers."""
        return self._base + len(self._log)

    def changed_since(self, version: int) -> Sequence[int]:
        """The workers that changed since that version; a worker may appear more than once."""
        return self._log[version - self._base :]

    def match(
        self, alternative: Alternative, state: OccupancyState, reserved: ReservedCapacity | None = None
    ) -> MatchResult:
        """The result for the alternative on workers in the state, beside the reserved capacity."""
        return self.matcher.match(alternative, state, None if reserved is None else reserved.on(state))

    def first_worker(self, state: OccupancyState) -> int | None:
        """The first worker in the state, by id."""
        group = self.groups.get(state)
        return None if group is None else group.heap[0]

    def first_workers(self) -> list[int]:
        """The first worker of each state, by id."""
        return [group.heap[0] for group in self.groups.values()]

    def ranking(self, alternative: Alternative, reserved: ReservedCapacity | None = None) -> Ranking:
        """The workers where the alternative fits beside the reserved capacity, ranked."""
        key = (alternative.key, reserved)
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rankings[key] = Ranking(self, MatchResults(self, alternative, reserved))
        return ranking

    def rejection_counts(self, alternative: Alternative, reserved: ReservedCapacity | None = None) -> RejectionCounts:
        """The workers where the alternative does not fit beside the reserved capacity, counted by reason."""
        key = (alternative.key, reserved)
        counts = self._rejection_counts.get(key)
        if counts is None:
            results = self.ranking(alternative, reserved).results
            counts = self._rejection_counts[key] = RejectionCounts(self, results)
        return counts

    def is_servable(self, alternative: Alternative) -> bool:
        """Whether it can run on any online worker with the devices that are healthy now, if the worker is idle."""
        is_servable = self._servable.get(alternative.key)
        if is_servable is None:
            is_servable = any(self.matcher.feasibility(alternative, shape).is_servable for shape in self._online)
            self._servable[alternative.key] = is_servable
        return is_servable

    def claims(self, number: int, fit: Fit) -> tuple[Claim, ...]:
        """What a fit takes of a worker, by device id."""
        ids = self.entries[number].device_ids
        return tuple([Claim(ids[position], need.share_milli, need.memory_bytes) for position, need in fit.takes])

    def take(self, number: int, fit: Fit, now: datetime) -> None:
        """Note that a fit of the worker's state was placed on it."""
        self.put(number, self.matcher.state_after(self.states[number], fit, now.timestamp()))

    def put(self, number: int, state: OccupancyState) -> None:
        """Treat a worker as if it were in that state for the rest of the decision."""
        self._placed.add(number)
        self._change(number, state)

    def mark(self, number: int) -> None:
        """Tell a worker apart from equal ones for the rest of the decision; see `ReservedCapacity.by_worker`."""
        state = self.states[number]
        self.put(number, self.matcher.state(state.shape, state.is_lost, state.held, number))

    def reserved_capacity_for(self, alternatives: tuple[Alternative, ...], members: int = 1) -> ReservedCapacity:
        """What must stay free so that `members` requests are not delayed; see `Matcher.reservation_for`."""
        key = (members, *(alternative.key for alternative in alternatives))
        reserved = self._reserved.get(key)
        if reserved is None:
            reservations = {shape: self.matcher.reservation_for(alternatives, shape, members) for shape in self._online}
            by_shape = {shape: reservation for shape, reservation in reservations.items() if reservation is not None}
            reserved = self._reserved.setdefault(frozenset(by_shape.items()), ReservedCapacity(by_shape))
            self._reserved[key] = reserved
        return reserved

    def _change(self, number: int, after: OccupancyState) -> None:
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
