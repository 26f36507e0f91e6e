"""What a worker will have free once the leases that are on their way out have ended, less what is promised of it."""

from __future__ import annotations

from collections.abc import Iterable

from hetero_airflow.matching.feasibility import ResourceNeed, device_count, host_need
from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import Alternative

ClaimedAmounts = tuple[tuple[int, int, int], ...]
"""(position, thousandths, bytes) on one worker."""

_NO_NEED = ResourceNeed(0, 0)


class FutureCapacity:
    """One worker during one decision, as it will be soon.

    `held` is what will be leased or promised of each device then; what is placed on the worker meanwhile is
    taken in by `catch_up`.
    """

    def __init__(self, fleet: WorkerIndex, number: int) -> None:
        self._fleet = fleet
        self._number = number
        self._seen = fleet.states[number]
        self.held = list(self._seen.held)

    def catch_up(self) -> None:
        """Take in what was placed on the worker since the last time."""
        state = self._fleet.states[self._number]
        if state is self._seen:
            return
        for position, (after, before) in enumerate(zip(state.held, self._seen.held, strict=True)):
            if after is not before:
                self.held[position] = _changed_by(
                    self.held[position],
                    after.share_milli - before.share_milli,
                    after.memory_bytes - before.memory_bytes,
                )
        self._seen = state

    def taken(self, claims: Iterable[Claim]) -> ClaimedAmounts:
        """Claims by position; devices that the worker no longer has are left out."""
        position = self._fleet.entries[self._number].position
        return tuple(
            (position[claim.device_id], claim.share_milli, claim.memory_bytes)
            for claim in claims
            if claim.device_id in position
        )

    def can_hold(self, held: list[Allocation], taken: ClaimedAmounts) -> bool:
        """Whether the devices have room for that beside what is held of them."""
        capacity = self._seen.shape.capacity
        return all(
            held[p].share_milli + milli <= capacity[p][0] and held[p].memory_bytes + memory <= capacity[p][1]
            for p, milli, memory in taken
        )

    def fits(self, alternative: Alternative, held: list[Allocation], keep: ReservedCapacity | None) -> bool:
        """Whether the alternative fits where that is held, beside what is kept."""
        shape = self._seen.shape
        feasibility = self._fleet.matcher.feasibility(alternative, shape)
        if not feasibility.is_servable or self._seen.is_lost:
            return False
        kept = None if keep is None else keep.by_shape.get(shape)
        beside = host_need(alternative)
        if beside is not None:
            assert shape.cpu is not None, "a host need passes feasibility only where there is a CPU"
            if not self._has_room(shape.cpu, held, beside, _NO_NEED if kept is None else kept.needs[shape.cpu]):
                return False
        missing = device_count(alternative)
        for position, need in feasibility.need_at.items():
            if self._has_room(position, held, need, _NO_NEED if kept is None else kept.needs[position]):
                missing -= 1
                if missing == 0:
                    return True
        return False

    def fit(self, alternative: Alternative, held: list[Allocation], keep: ReservedCapacity | None) -> Fit | None:
        """Where on the worker the alternative fits then, and how well."""
        matcher = self._fleet.matcher
        state = matcher.state(self._seen.shape, self._seen.is_lost, tuple(held))
        outcome = self._fleet.outcome(alternative, state, keep)
        return outcome if isinstance(outcome, Fit) else None

    def promise(self, fit: Fit) -> None:
        """Let nobody else have what a fit takes of the worker then: neither then nor now."""
        for position, need in fit.takes:
            self.held[position] = _changed_by(self.held[position], need.share_milli, need.memory_bytes)
        self._block()

    def claim(self, fit: Fit) -> None:
        """Let nobody else have the devices of a fit, though it is not known when they are free."""
        for position, _ in fit.takes:
            milli, memory = self._seen.shape.capacity[position]
            self.held[position] = self.held[position]._replace(share_milli=milli, memory_bytes=memory)
        self._block()

    def _block(self) -> None:
        """Make the worker of the fleet look as full as it is now and as it will be soon."""
        held = tuple(
            _changed_by(now, max(0, soon.share_milli - now.share_milli), max(0, soon.memory_bytes - now.memory_bytes))
            for now, soon in zip(self._seen.held, self.held, strict=True)
        )
        self._seen = self._fleet.matcher.state(self._seen.shape, self._seen.is_lost, held)
        self._fleet.put(self._number, self._seen)

    def _has_room(self, position: int, held: list[Allocation], need: ResourceNeed, kept: ResourceNeed) -> bool:
        milli, memory = self._seen.shape.capacity[position]
        before = held[position]
        return (need.share_milli == 0 or milli - before.share_milli - need.share_milli >= kept.share_milli) and (
            need.memory_bytes == 0 or memory - before.memory_bytes - need.memory_bytes >= kept.memory_bytes
        )


def added(held: list[Allocation], taken: ClaimedAmounts) -> list[Allocation]:
    """What is held once that is taken too."""
    after = held.copy()
    for position, milli, memory in taken:
        after[position] = _changed_by(after[position], milli, memory)
    return after


def freed(held: list[Allocation], taken: ClaimedAmounts) -> list[Allocation]:
    """What is held once that is given back."""
    after = held.copy()
    for position, milli, memory in taken:
        after[position] = _changed_by(after[position], -milli, -memory)
    return after


def _changed_by(held: Allocation, milli: int, memory_bytes: int) -> Allocation:
    if not (milli or memory_bytes):
        return held
    return Allocation(max(0, held.share_milli + milli), max(0, held.memory_bytes + memory_bytes), held.granted_s)
