"""Does this alternative fit a worker in this state, where on it, and how well? Asked once for all equal workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_airflow.matching.feasibility import (
    Feasibility,
    Rejection,
    ResourceNeed,
    device_count,
    device_need,
    feasibility_of,
    host_need,
    lost_worker_rejection,
    make_rejection,
)
from hetero_airflow.matching.linked_devices import joined_sets, needed_level
from hetero_airflow.matching.scoring import NO_ALLOCATION, Allocation, PlacementScorer
from hetero_airflow.matching.shapes import Shape, Shapes, WorkerEntry
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage
from hetero_airflow.model.worker import Worker, WorkerState

MAX_STATES = 200_000
"""States kept between cycles; more, and all are forgotten and asked again."""

MAX_RESULTS = 500_000
"""Outcomes kept between cycles, about 300 bytes each."""


_NO_NEED = ResourceNeed(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class ShapeReservation:
    """For each position of a shape, what must be left free for the request that comes first."""

    needs: tuple[ResourceNeed, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A possible placement on workers of one state: chosen positions, what is taken of each, and the score."""

    chosen: tuple[int, ...]
    takes: tuple[tuple[int, ResourceNeed], ...]
    """(position, need): the devices, then the host's CPU where something is asked of it."""
    score: float
    terms: Mapping[str, float]
    """Rounded to six digits, for people."""
    after: list[OccupancyState] = field(default_factory=list, compare=False, repr=False)
    """The state that it leaves behind, once that was asked for; see `Matcher.taken`."""


MatchResult = Fit | Rejection


@dataclass(frozen=True, slots=True, eq=False)
class OccupancyState:
    """A class of workers that are equal in shape and in what is leased of them."""

    shape: Shape
    is_lost: bool
    held: tuple[Allocation, ...]
    mark: int | None = None
    """Number of the one worker that is in it, where that is told apart from its equals."""
    outcomes: dict[object, MatchResult] = field(default_factory=dict)


class Matcher:
    """Remembers shapes, verdicts and outcomes between cycles; forgetting changes no answer."""

    def __init__(self, placement: PlacementScorer) -> None:
        self.placement = placement
        self._forget()

    def _forget(self) -> None:
        self.shapes = Shapes()
        self._states: dict[object, OccupancyState] = {}
        self._kept: dict[tuple[ResourceNeed, ...], ShapeReservation] = {}
        self._feasibilities: dict[tuple[str, Shape], Feasibility] = {}
        self._outcomes = 0

    def trim(self) -> None:
        """Forget everything if it has grown past its bounds; call it between decisions only.

        Whoever holds on to states sees it by `shapes`, which is another object from then on.
        """
        if len(self._states) > MAX_STATES or self._outcomes > MAX_RESULTS:
            self._forget()

    def entry(self, worker: Worker) -> WorkerEntry:
        """The worker's shape, and which device stands where."""
        return self.shapes.entry(worker)

    def state(
        self, shape: Shape, is_lost: bool, held: tuple[Allocation, ...], mark: int | None = None
    ) -> OccupancyState:
        """The one object that stands for this state."""
        key = (shape, is_lost, held, mark)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = OccupancyState(shape, is_lost, held, mark)
        return state

    def present(self, entry: WorkerEntry, usage: Mapping[str, DeviceUsage]) -> OccupancyState:
        """The state of a worker, given what is leased of its devices by their ids."""
        held = tuple([self._held(usage.get(device_id, NO_USAGE)) for device_id in entry.device_ids])
        return self.state(entry.shape, entry.worker.state is WorkerState.LOST, held)

    def _held(self, usage: DeviceUsage) -> Allocation:
        last = usage.last_granted_at
        granted_s = last.timestamp() if self.placement.uses_history and last is not None else 0.0
        if not (usage.share_milli or usage.memory_bytes or granted_s):
            return NO_ALLOCATION
        return Allocation(usage.share_milli, usage.memory_bytes, granted_s)

    def feasibility(self, alternative: Alternative, shape: Shape) -> Feasibility:
        """What is true of the alternative on workers of the shape, whatever is leased."""
        key = (alternative.key, shape)
        feasibility = self._feasibilities.get(key)
        if feasibility is None:
            feasibility = self._feasibilities[key] = feasibility_of(alternative, shape)
            self._outcomes += 1
        return feasibility

    def outcome(self, alternative: Alternative, state: OccupancyState, kept: ShapeReservation | None) -> MatchResult:
        """Where on a worker of the state the alternative fits and how well, or what is in the way."""
        outcome = state.outcomes.get(alternative.key)
        if outcome is None:
            outcome = state.outcomes[alternative.key] = self._outcome(alternative, state)
            self._outcomes += 1
        if kept is None or isinstance(outcome, Rejection):
            return outcome
        key = (alternative.key, kept)
        beside = state.outcomes.get(key)
        if beside is None:
            beside = state.outcomes[key] = self._beside(alternative, state, kept, outcome)
            self._outcomes += 1
        return beside

    def _outcome(self, alternative: Alternative, state: OccupancyState) -> MatchResult:
        feasibility = self.feasibility(alternative, state.shape)
        if feasibility.never is not None:
            return feasibility.never
        if state.is_lost:
            return lost_worker_rejection(alternative)
        if feasibility.unwell is not None:
            return feasibility.unwell
        free, beside = _free(state, feasibility, None), host_need(alternative)
        if len(free) < device_count(alternative):
            return _short_of_devices(alternative, state, feasibility, len(free))
        if beside is not None and not _has_room(state, _cpu(state.shape), beside, _NO_NEED):
            return _short_of_host(alternative, state, beside)
        choices = _choices(alternative, state.shape, free)
        return self._best(alternative, state, choices) if choices else _scattered(alternative, state.shape, free)

    def _beside(
        self, alternative: Alternative, state: OccupancyState, kept: ShapeReservation, alone: Fit
    ) -> MatchResult:
        """The outcome where something is kept, of an alternative that fits as long as nothing is."""
        shape, feasibility = state.shape, self.feasibility(alternative, state.shape)
        free, beside = _free(state, feasibility, kept), host_need(alternative)
        choices = _choices(alternative, shape, free)
        if not choices or not (beside is None or _has_room(state, _cpu(shape), beside, kept.needs[_cpu(shape)])):
            return make_rejection(
                ReasonCode.RESERVED, feasibility.asked, "a fit, which is kept for the first in the queue"
            )
        is_untouched = len(free) == len(_free(state, feasibility, None))
        return alone if is_untouched else self._best(alternative, state, choices)

    def _best(self, alternative: Alternative, state: OccupancyState, choices: Sequence[Sequence[int]]) -> Fit:
        """The best devices of the sets among which the placement may choose."""
        shape, feasibility, beside = state.shape, self.feasibility(alternative, state.shape), host_need(alternative)
        options = []
        for free in choices:
            chosen = self.placement.choose(alternative, shape, state.held, free)
            options.append((chosen, self.placement.terms(alternative, shape, state.held, feasibility, chosen)))
        chosen, terms = min(options, key=lambda option: (-sum(option[1].values()), option[0]))
        takes = [(p, feasibility.need_at[p]) for p in chosen]
        if beside is not None:
            takes.append((_cpu(shape), beside))
        return Fit(chosen, tuple(takes), sum(terms.values()), {name: round(value, 6) for name, value in terms.items()})

    def taken(self, state: OccupancyState, fit: Fit, granted_s: float) -> OccupancyState:
        """The state of a worker once a fit of its state has been placed on it at that time."""
        if fit.after:
            return fit.after[0]
        held = list(state.held)
        when = granted_s if self.placement.uses_history else 0.0
        for position, need in fit.takes:
            before = held[position]
            held[position] = Allocation(
                before.share_milli + need.share_milli, before.memory_bytes + need.memory_bytes, when
            )
        after = self.state(state.shape, state.is_lost, tuple(held), state.mark)
        if not self.placement.uses_history:
            fit.after.append(after)
        return after

    def kept(self, alternatives: tuple[Alternative, ...], shape: Shape, members: int) -> ShapeReservation | None:
        """What must stay free on a worker of the shape lest the request be delayed there; None if it can't run there.

        On each device that it could use, what the hungriest of its alternatives takes of it: as long as
        so much is left, whoever is placed beside it can't be the one it waits for. Of a gang, all members
        may come to the same device.
        """
        needs = [_NO_NEED] * len(shape.devices)
        for alternative in alternatives:
            feasibility = self.feasibility(alternative, shape)
            if not feasibility.is_servable:
                continue
            takes = list(feasibility.need_at.items())
            beside = host_need(alternative)
            if beside is not None:
                takes.append((_cpu(shape), beside))
            for p, need in takes:
                needs[p] = ResourceNeed(
                    max(needs[p].share_milli, need.share_milli), max(needs[p].memory_bytes, need.memory_bytes)
                )
        if all(need == _NO_NEED for need in needs):
            return None
        if members > 1:
            most = zip(needs, shape.capacity, strict=True)
            needs = [
                ResourceNeed(min(n.share_milli * members, c[0]), min(n.memory_bytes * members, c[1])) for n, c in most
            ]
        return self.shape_reservation(tuple(needs))

    def shape_reservation(self, needs: tuple[ResourceNeed, ...]) -> ShapeReservation:
        """The one object for leaving so much free of each position."""
        return self._kept.setdefault(needs, ShapeReservation(needs))


def _cpu(shape: Shape) -> int:
    assert shape.cpu is not None, "a host need passes feasibility only where there is a CPU"
    return shape.cpu


def _has_room(state: OccupancyState, position: int, need: ResourceNeed, kept: ResourceNeed) -> bool:
    """Whether the need fits beside what is held, and leaves what is kept of each dimension that it touches."""
    milli, memory = state.shape.capacity[position]
    held = state.held[position]
    return (need.share_milli == 0 or milli - held.share_milli - need.share_milli >= kept.share_milli) and (
        need.memory_bytes == 0 or memory - held.memory_bytes - need.memory_bytes >= kept.memory_bytes
    )


def _free(state: OccupancyState, feasibility: Feasibility, kept: ShapeReservation | None) -> list[int]:
    """The positions where the need fits beside what is held, and leaves what is kept."""
    return [
        p
        for p, need in feasibility.need_at.items()
        if _has_room(state, p, need, _NO_NEED if kept is None else kept.needs[p])
    ]


def _choices(alternative: Alternative, shape: Shape, free: Sequence[int]) -> Sequence[Sequence[int]]:
    """The sets of free devices of any of which the alternative may take what it needs; empty if there are too few."""
    if len(free) < device_count(alternative):
        return ()
    level = needed_level(alternative)
    return (free,) if level is None else joined_sets(shape, free, level, alternative.count)


def _scattered(alternative: Alternative, shape: Shape, free: Sequence[int]) -> Rejection:
    level = needed_level(alternative)
    assert level is not None, "without a level, enough free devices are a choice"
    most = max(map(len, joined_sets(shape, free, level, 1)))
    found = f"{len(free)} free, at most {most} joined by {level}"
    return make_rejection(ReasonCode.SCATTERED, str(alternative), found, amount=most)


def _short_of_devices(
    alternative: Alternative, state: OccupancyState, feasibility: Feasibility, free: int
) -> Rejection:
    if alternative.kind == "cpu":
        return _short_of_host(alternative, state, device_need(alternative, state.shape.devices[feasibility.usable[0]]))
    if alternative.share is not None:
        most = max(1000 - state.held[p].share_milli for p in feasibility.usable)
        return make_rejection(ReasonCode.BUSY, feasibility.asked, f"{most / 1000:g} of a device free", amount=most)
    return make_rejection(ReasonCode.BUSY, feasibility.asked, f"{free} of {len(feasibility.usable)} free", amount=free)


def _short_of_host(alternative: Alternative, state: OccupancyState, need: ResourceNeed) -> Rejection:
    cpu = _cpu(state.shape)
    milli, memory = state.shape.capacity[cpu]
    held = state.held[cpu]
    cores = (milli - held.share_milli) // 1000
    if need.share_milli > milli - held.share_milli:
        found = f"{cores} of {milli // 1000} cores free"
    else:
        found = f"{(memory - held.memory_bytes) / 2**30:.1f} of {memory / 2**30:.1f} GiB of host memory free"
    return make_rejection(ReasonCode.BUSY, str(alternative), found, amount=cores)
