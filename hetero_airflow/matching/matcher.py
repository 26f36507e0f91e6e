"""Does this alternative fit a worker in this state, where on it, and how well? Asked once for all equal workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_airflow.matching.feasibility import (
    Miss,
    Need,
    Verdict,
    device_count,
    device_need,
    host_need,
    judge,
    lost_miss,
    make_miss,
)
from hetero_airflow.matching.joined import joined_sets, needed_level
from hetero_airflow.matching.scoring import NOTHING, Held, Placement
from hetero_airflow.matching.shapes import Seat, Shape, Shapes
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import Snapshot, Usage
from hetero_airflow.model.worker import Worker, WorkerState

MAX_STATES = 200_000
"""States kept between cycles; more, and all are forgotten and asked again."""

MAX_OUTCOMES = 500_000
"""Outcomes kept between cycles, about 300 bytes each."""


_NO_NEED = Need(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """For each position of a shape, what must be left free for the request that comes first."""

    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A possible placement on workers of one state: chosen positions, what is taken of each, and the score."""

    chosen: tuple[int, ...]
    takes: tuple[tuple[int, Need], ...]
    """(position, need): the devices, then the host's CPU where something is asked of it."""
    score: float
    terms: Mapping[str, float]


Outcome = Fit | Miss


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A class of workers that are equal in shape and in what is leased of them."""

    shape: Shape
    is_lost: bool
    held: tuple[Held, ...]
    outcomes: dict[object, Outcome] = field(default_factory=dict)


class Matcher:
    """Remembers shapes, verdicts and outcomes between cycles; forgetting changes no answer."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._forget()

    def _forget(self) -> None:
        self.shapes = Shapes()
        self._states: dict[object, State] = {}
        self._present: dict[str, tuple[Seat, State]] = {}
        self._usage: Mapping[tuple[str, str], Usage] = {}
        self._kept: dict[tuple[Need, ...], Kept] = {}
        self._verdicts: dict[tuple[str, Shape], Verdict] = {}
        self._outcomes = 0

    def trim(self) -> None:
        """Forget everything if it has grown past its bounds; call it between decisions only."""
        if len(self._states) > MAX_STATES or self._outcomes > MAX_OUTCOMES:
            self._forget()

    def seat(self, worker: Worker) -> Seat:
        """The worker's shape, and which device stands where."""
        return self.shapes.seat(worker)

    def state(self, shape: Shape, is_lost: bool, held: tuple[Held, ...]) -> State:
        """The one object that stands for this state."""
        key = (shape, is_lost, held)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(shape, is_lost, held)
        return state

    def present(self, seats: Sequence[Seat], snapshot: Snapshot) -> list[State]:
        """The state of each worker of a snapshot, in the order of the seats.

        Worked out anew for workers of which something was leased or freed since the last time only; a
        store helps by handing out the same objects for the usage that did not change.
        """
        changed = _changed_workers(self._usage, snapshot.usage)
        states: list[State] = []
        now: dict[str, tuple[Seat, State]] = {}
        for seat in seats:
            worker_id = seat.worker.id
            known = self._present.get(worker_id)
            if known is None or known[0] is not seat or worker_id in changed:
                held = tuple(self._held(snapshot.used(worker_id, device_id)) for device_id in seat.device_ids)
                known = (seat, self.state(seat.shape, seat.worker.state is WorkerState.LOST, held))
            now[worker_id] = known
            states.append(known[1])
        self._present, self._usage = now, snapshot.usage
        return states

    def _held(self, usage: Usage) -> Held:
        last = usage.last_granted_at
        granted_s = last.timestamp() if self.placement.uses_history and last is not None else 0.0
        if not (usage.milli or usage.memory_bytes or granted_s):
            return NOTHING
        return Held(usage.milli, usage.memory_bytes, granted_s)

    def verdict(self, alternative: Alternative, shape: Shape) -> Verdict:
        """What is true of the alternative on workers of the shape, whatever is leased."""
        key = (alternative.key, shape)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = judge(alternative, shape)
            self._outcomes += 1
        return verdict

    def outcome(self, alternative: Alternative, state: State, kept: Kept | None) -> Outcome:
        """Where on a worker of the state the alternative fits and how well, or what is in the way."""
        key = alternative.key if kept is None else (alternative.key, kept)
        outcome = state.outcomes.get(key)
        if outcome is None:
            outcome = state.outcomes[key] = self._outcome(alternative, state, kept)
            self._outcomes += 1
        return outcome

    def _outcome(self, alternative: Alternative, state: State, kept: Kept | None) -> Outcome:
        shape, verdict = state.shape, self.verdict(alternative, state.shape)
        if verdict.never is not None:
            return verdict.never
        if state.is_lost:
            return lost_miss(alternative)
        if verdict.unwell is not None:
            return verdict.unwell
        needs = dict(zip(verdict.usable, verdict.needs, strict=True))
        free = [p for p, need in needs.items() if _has_room(state, p, need, _NO_NEED)]
        beside = host_need(alternative)
        if len(free) < device_count(alternative):
            return _short_of_devices(alternative, state, verdict, len(free))
        if beside is not None and not _has_room(state, _cpu(shape), beside, _NO_NEED):
            return _short_of_host(alternative, state, beside)
        choices = _choices(alternative, shape, free)
        if not choices:
            return _scattered(alternative, shape, free)
        if kept is not None:
            free = [p for p in free if _has_room(state, p, needs[p], kept.needs[p])]
            choices = _choices(alternative, shape, free)
            if not choices or not (beside is None or _has_room(state, _cpu(shape), beside, kept.needs[_cpu(shape)])):
                return make_miss(
                    ReasonCode.RESERVED, str(alternative), "a fit, which is kept for the first in the queue"
                )
        chosen, terms = self._best(alternative, state, verdict, choices)
        takes = [(p, needs[p]) for p in chosen]
        if beside is not None:
            takes.append((_cpu(shape), beside))
        return Fit(chosen, tuple(takes), sum(terms.values()), terms)

    def _best(
        self, alternative: Alternative, state: State, verdict: Verdict, choices: Sequence[Sequence[int]]
    ) -> tuple[tuple[int, ...], Mapping[str, float]]:
        """The best devices of the sets among which the placement may choose, and the terms of their score."""
        options = []
        for free in choices:
            chosen = self.placement.choose(alternative, state.shape, state.held, free)
            options.append((chosen, self.placement.terms(alternative, state.shape, state.held, verdict, chosen)))
        return min(options, key=lambda option: (-sum(option[1].values()), option[0]))

    def taken(self, state: State, takes: tuple[tuple[int, Need], ...], granted_s: float) -> State:
        """The state after these needs have been taken at that time."""
        held = list(state.held)
        when = granted_s if self.placement.uses_history else 0.0
        for position, need in takes:
            before = held[position]
            held[position] = Held(before.milli + need.milli, before.memory_bytes + need.memory_bytes, when)
        return self.state(state.shape, state.is_lost, tuple(held))

    def kept(self, alternatives: tuple[Alternative, ...], shape: Shape, members: int) -> Kept | None:
        """What must stay free on a worker of the shape lest the request be delayed there; None if it can't run there.

        On each device that it could use, what the hungriest of its alternatives takes of it: as long as
        so much is left, whoever is placed beside it can't be the one it waits for. Of a gang, all members
        may come to the same device.
        """
        needs = [_NO_NEED] * len(shape.devices)
        for alternative in alternatives:
            verdict = self.verdict(alternative, shape)
            if not verdict.is_servable:
                continue
            takes = list(zip(verdict.usable, verdict.needs, strict=True))
            beside = host_need(alternative)
            if beside is not None:
                takes.append((_cpu(shape), beside))
            for p, need in takes:
                needs[p] = Need(max(needs[p].milli, need.milli), max(needs[p].memory_bytes, need.memory_bytes))
        if all(need == _NO_NEED for need in needs):
            return None
        if members > 1:
            most = zip(needs, shape.capacity, strict=True)
            needs = [Need(min(n.milli * members, c[0]), min(n.memory_bytes * members, c[1])) for n, c in most]
        return self._kept.setdefault(tuple(needs), Kept(tuple(needs)))


def _changed_workers(before: Mapping[tuple[str, str], Usage], after: Mapping[tuple[str, str], Usage]) -> set[str]:
    """Ids of the workers whose usage is not the same objects as before."""
    if after is before:
        return set()
    changed, known = set(), 0
    for key, usage in after.items():
        old = before.get(key)
        known += old is not None
        if old is not usage:
            changed.add(key[0])
    if known != len(before):
        changed |= {key[0] for key in before if key not in after}
    return changed


def _cpu(shape: Shape) -> int:
    assert shape.cpu is not None, "a host need passes feasibility only where there is a CPU"
    return shape.cpu


def _has_room(state: State, position: int, need: Need, kept: Need) -> bool:
    """Whether the need fits beside what is held, and leaves what is kept of each dimension that it touches."""
    milli, memory = state.shape.capacity[position]
    held = state.held[position]
    return (need.milli == 0 or milli - held.milli - need.milli >= kept.milli) and (
        need.memory_bytes == 0 or memory - held.memory_bytes - need.memory_bytes >= kept.memory_bytes
    )


def _choices(alternative: Alternative, shape: Shape, free: Sequence[int]) -> Sequence[Sequence[int]]:
    """The sets of free devices of any of which the alternative may take what it needs; empty if there are too few."""
    if len(free) < device_count(alternative):
        return ()
    level = needed_level(alternative)
    return (free,) if level is None else joined_sets(shape, free, level, alternative.count)


def _scattered(alternative: Alternative, shape: Shape, free: Sequence[int]) -> Miss:
    level = needed_level(alternative)
    assert level is not None, "without a level, enough free devices are a choice"
    most = max(map(len, joined_sets(shape, free, level, 1)))
    found = f"{len(free)} free, at most {most} joined by {level}"
    return make_miss(ReasonCode.SCATTERED, str(alternative), found, amount=most)


def _short_of_devices(alternative: Alternative, state: State, verdict: Verdict, free: int) -> Miss:
    if alternative.kind == "cpu":
        return _short_of_host(alternative, state, device_need(alternative, state.shape.devices[verdict.usable[0]]))
    if alternative.share is not None:
        most = max(1000 - state.held[p].milli for p in verdict.usable)
        return make_miss(ReasonCode.BUSY, str(alternative), f"{most / 1000:g} of a device free", amount=most)
    return make_miss(ReasonCode.BUSY, str(alternative), f"{free} of {len(verdict.usable)} free", amount=free)


def _short_of_host(alternative: Alternative, state: State, need: Need) -> Miss:
    cpu = _cpu(state.shape)
    milli, memory = state.shape.capacity[cpu]
    held = state.held[cpu]
    cores = (milli - held.milli) // 1000
    if need.milli > milli - held.milli:
        found = f"{cores} of {milli // 1000} cores free"
    else:
        found = f"{(memory - held.memory_bytes) / 2**30:.1f} of {memory / 2**30:.1f} GiB of host memory free"
    return make_miss(ReasonCode.BUSY, str(alternative), found, amount=cores)
