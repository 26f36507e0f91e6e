"""The matcher says whether an alternative fits a worker in a state, on which devices, and how well.

It answers once for all workers in the same state.
"""

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
from hetero_airflow.matching.scoring import NO_ALLOCATION, Allocation, Allocations, PlacementScorer
from hetero_airflow.matching.shapes import Shape, Shapes, WorkerEntry
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.units import MILLI_PER_DEVICE

MAX_STATES = 200_000
"""States kept between cycles. Beyond that the matcher forgets everything and starts again."""

MAX_RESULTS = 500_000
"""Results kept between cycles, about 300 bytes each."""

NO_NEED = ResourceNeed(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class ShapeReservation:
    """The amount of each position of a shape that must stay free for an earlier request."""

    needs: tuple[ResourceNeed, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A possible placement on workers in one state: the chosen positions, what it takes of each, and the score."""

    chosen: tuple[int, ...]
    takes: tuple[tuple[int, ResourceNeed], ...]
    """(position, need) of the devices, then of the host's CPU if it takes something of that."""
    score: float
    terms: Mapping[str, float]
    """Terms of the score, rounded to six digits for display."""
    after: "list[OccupancyState]" = field(default_factory=list, compare=False, repr=False)
    """The state after this placement, once it was computed; see `Matcher.state_after`."""


MatchResult = Fit | Rejection


@dataclass(frozen=True, slots=True, eq=False)
class OccupancyState:
    """A class of workers with the same shape and the same leased amounts."""

    shape: Shape
    is_lost: bool
    held: tuple[Allocation, ...]
    mark: int | None = None
    """The number of the only worker in this state, if that worker is told apart from equal ones."""
    results: dict[object, MatchResult] = field(default_factory=dict)


class Matcher:
    """Remembers shapes, feasibilities and results between cycles. Forgetting them never changes an answer."""

    def __init__(self, scorer: PlacementScorer) -> None:
        self.scorer = scorer
        self._forget()

    def _forget(self) -> None:
        self.shapes = Shapes()
        self._states: dict[object, OccupancyState] = {}
        self._reservations: dict[tuple[ResourceNeed, ...], ShapeReservation] = {}
        self._feasibilities: dict[tuple[str, Shape], Feasibility] = {}
        self._results = 0

    def trim(self) -> None:
        """Forget everything if the limits are exceeded; call it between decisions only.

        Afterwards `shapes` is another object. A caller that keeps states notices it by that.
        """
        if len(self._states) > MAX_STATES or self._results > MAX_RESULTS:
            self._forget()

    def entry(self, worker: Worker) -> WorkerEntry:
        """The worker's shape and the positions of its devices."""
        return self.shapes.entry(worker)

    def state(
        self, shape: Shape, is_lost: bool, held: tuple[Allocation, ...], mark: int | None = None
    ) -> OccupancyState:
        """The one object for this state."""
        key = (shape, is_lost, held, mark)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = OccupancyState(shape, is_lost, held, mark)
        return state

    def state_of(self, entry: WorkerEntry, usage: Mapping[str, DeviceUsage]) -> OccupancyState:
        """The state of a worker with this usage by device id."""
        held = tuple([self._allocation(usage.get(device_id, NO_USAGE)) for device_id in entry.device_ids])
        return self.state(entry.shape, entry.worker.state is WorkerState.LOST, held)

    def _allocation(self, usage: DeviceUsage) -> Allocation:
        last = usage.last_granted_at
        granted_s = last.timestamp() if self.scorer.uses_history and last is not None else 0.0
        if not (usage.share_milli or usage.memory_bytes or granted_s):
            return NO_ALLOCATION
        return Allocation(usage.share_milli, usage.memory_bytes, granted_s)

    def feasibility(self, alternative: Alternative, shape: Shape) -> Feasibility:
        """Whether the alternative can run on workers of the shape, whatever is leased."""
        key = (alternative.key, shape)
        feasibility = self._feasibilities.get(key)
        if feasibility is None:
            feasibility = self._feasibilities[key] = feasibility_of(alternative, shape)
            self._results += 1
        return feasibility

    def match(
        self, alternative: Alternative, state: OccupancyState, reservation: ShapeReservation | None
    ) -> MatchResult:
        """Where on a worker in the state the alternative fits and how well, or why it does not fit."""
        result = state.results.get(alternative.key)
        if result is None:
            result = state.results[alternative.key] = self._match(alternative, state)
            self._results += 1
        if reservation is None or isinstance(result, Rejection):
            return result
        key = (alternative.key, reservation)
        reserved_result = state.results.get(key)
        if reserved_result is None:
            reserved_result = self._match_reserved(alternative, state, reservation, result)
            state.results[key] = reserved_result
            self._results += 1
        return reserved_result

    def _match(self, alternative: Alternative, state: OccupancyState) -> MatchResult:
        feasibility = self.feasibility(alternative, state.shape)
        if feasibility.permanent_rejection is not None:
            return feasibility.permanent_rejection
        if state.is_lost:
            return lost_worker_rejection(alternative)
        if feasibility.health_rejection is not None:
            return feasibility.health_rejection
        free, host = _free_positions(state, feasibility, None), host_need(alternative)
        if len(free) < device_count(alternative):
            return _too_few_devices(alternative, state, feasibility, len(free))
        if host is not None and not has_room(state.shape, state.held, cpu_position(state.shape), host, NO_NEED):
            return _too_small_host(alternative, state, host)
        choices = _choices(alternative, state.shape, free)
        return self._best_fit(alternative, state, choices) if choices else _scattered(alternative, state.shape, free)

    def _match_reserved(
        self, alternative: Alternative, state: OccupancyState, reservation: ShapeReservation, unreserved: Fit
    ) -> MatchResult:
        """The result beside a reservation, for an alternative that fits without it."""
        shape, feasibility = state.shape, self.feasibility(alternative, state.shape)
        free, host = _free_positions(state, feasibility, reservation), host_need(alternative)
        choices = _choices(alternative, shape, free)
        if host is not None and choices:
            cpu = cpu_position(shape)
            choices = choices if has_room(shape, state.held, cpu, host, reservation.needs[cpu]) else ()
        if not choices:
            found = "a fit that is reserved for an earlier request"
            return make_rejection(ReasonCode.RESERVED, feasibility.asked, found)
        is_unaffected = len(free) == len(_free_positions(state, feasibility, None))
        return unreserved if is_unaffected else self._best_fit(alternative, state, choices)

    def _best_fit(self, alternative: Alternative, state: OccupancyState, choices: Sequence[Sequence[int]]) -> Fit:
        """The best devices of the sets from which the scorer may choose."""
        shape, feasibility = state.shape, self.feasibility(alternative, state.shape)
        options = []
        for free in choices:
            chosen = self.scorer.choose(alternative, shape, state.held, free)
            options.append((chosen, self.scorer.terms(alternative, shape, state.held, feasibility, chosen)))
        chosen, terms = min(options, key=lambda option: (-sum(option[1].values()), option[0]))
        takes, host = [(p, feasibility.needs[p]) for p in chosen], host_need(alternative)
        if host is not None:
            takes.append((cpu_position(shape), host))
        return Fit(chosen, tuple(takes), sum(terms.values()), {name: round(value, 6) for name, value in terms.items()})

    def state_after(self, state: OccupancyState, fit: Fit, granted_s: float) -> OccupancyState:
        """The state of a worker after a fit of its state was placed on it at that time."""
        if fit.after:
            return fit.after[0]
        held = list(state.held)
        last_s = granted_s if self.scorer.uses_history else 0.0
        for position, need in fit.takes:
            before = held[position]
            share_milli, memory_bytes = before.share_milli + need.share_milli, before.memory_bytes + need.memory_bytes
            held[position] = Allocation(share_milli, memory_bytes, last_s)
        after = self.state(state.shape, state.is_lost, tuple(held), state.mark)
        if not self.scorer.uses_history:
            fit.after.append(after)
        return after

    def reservation_for(
        self, alternatives: tuple[Alternative, ...], shape: Shape, members: int
    ) -> ShapeReservation | None:
        """What must stay free on a worker of the shape so that a request is not delayed there; None if it can't run.

        For each device that it could use, this is the greatest need of its alternatives. As long as that much is free,
        no other placement on the worker delays the request. All members of a gang may use the same device.
        """
        needs = [NO_NEED] * len(shape.devices)
        for alternative in alternatives:
            feasibility = self.feasibility(alternative, shape)
            if not feasibility.is_servable:
                continue
            takes, host = list(feasibility.needs.items()), host_need(alternative)
            if host is not None:
                takes.append((cpu_position(shape), host))
            for p, need in takes:
                needs[p] = ResourceNeed(*map(max, needs[p], need))
        if all(need == NO_NEED for need in needs):
            return None
        if members > 1:
            pairs = zip(needs, shape.capacity, strict=True)
            needs = [ResourceNeed(*(min(n * members, limit) for n, limit in zip(*pair, strict=True))) for pair in pairs]
        return self.shape_reservation(tuple(needs))

    def shape_reservation(self, needs: tuple[ResourceNeed, ...]) -> ShapeReservation:
        """The one object that reserves these amounts."""
        return self._reservations.setdefault(needs, ShapeReservation(needs))


def cpu_position(shape: Shape) -> int:
    """The position of the CPU of a shape on which an alternative with a host need is feasible."""
    assert shape.cpu is not None, "an alternative with a host need is feasible only on a worker with a CPU"
    return shape.cpu


def has_room(shape: Shape, held: Allocations, position: int, need: ResourceNeed, reserved: ResourceNeed) -> bool:
    """Whether the need fits beside what is held of a device, and leaves the reserved part of what it takes."""
    capacity_milli, memory = shape.capacity[position]
    before = held[position]
    return (
        need.share_milli == 0 or capacity_milli - before.share_milli - need.share_milli >= reserved.share_milli
    ) and (need.memory_bytes == 0 or memory - before.memory_bytes - need.memory_bytes >= reserved.memory_bytes)


def _free_positions(state: OccupancyState, feasibility: Feasibility, reservation: ShapeReservation | None) -> list[int]:
    return [
        p
        for p, need in feasibility.needs.items()
        if has_room(state.shape, state.held, p, need, NO_NEED if reservation is None else reservation.needs[p])
    ]


def _choices(alternative: Alternative, shape: Shape, free: Sequence[int]) -> Sequence[Sequence[int]]:
    """The sets of free devices from which the alternative may take what it needs; empty if there are too few."""
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


def _too_few_devices(alternative: Alternative, state: OccupancyState, feasibility: Feasibility, free: int) -> Rejection:
    if alternative.kind == "cpu":
        return _too_small_host(alternative, state, device_need(alternative, state.shape.devices[feasibility.usable[0]]))
    if alternative.share is not None:
        most = max(MILLI_PER_DEVICE - state.held[p].share_milli for p in feasibility.usable)
        found = f"{most / MILLI_PER_DEVICE:g} of a device free"
        return make_rejection(ReasonCode.BUSY, feasibility.asked, found, amount=most)
    return make_rejection(ReasonCode.BUSY, feasibility.asked, f"{free} of {len(feasibility.usable)} free", amount=free)


def _too_small_host(alternative: Alternative, state: OccupancyState, need: ResourceNeed) -> Rejection:
    cpu = cpu_position(state.shape)
    capacity_milli, memory = state.shape.capacity[cpu]
    held = state.held[cpu]
    cores = (capacity_milli - held.share_milli) // MILLI_PER_DEVICE
    if need.share_milli > capacity_milli - held.share_milli:
        found = f"{cores} of {capacity_milli // MILLI_PER_DEVICE} cores free"
    else:
        found = f"{(memory - held.memory_bytes) / 2**30:.1f} of {memory / 2**30:.1f} GiB of host memory free"
    return make_rejection(ReasonCode.BUSY, str(alternative), found, amount=cores)
