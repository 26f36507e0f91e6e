"""Future capacity: what a worker has free after the leases that are ending, minus what is promised of it."""

from collections.abc import Iterable

from hetero_airflow.matching.feasibility import device_count, host_need
from hetero_airflow.matching.matcher import NO_NEED, Fit, OccupancyState, cpu_position, has_room
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.request import Alternative

ClaimedAmounts = tuple[tuple[int, int, int], ...]
"""(position, thousandths, bytes) on one worker."""


class FutureCapacity:
    """One worker during one decision, in its expected state.

    `held` is the leased or promised amount of each device then. `catch_up` takes in new placements on the worker.
    `version` grows with each change of `held`.
    """

    def __init__(self, index: WorkerIndex, number: int) -> None:
        self._index = index
        self._number = number
        self._seen = index.states[number]
        self.held = list(self._seen.held)
        self.version = 0

    def catch_up(self) -> None:
        """Take in what was placed on the worker since the last call."""
        state = self._index.states[self._number]
        if state is self._seen:
            return
        for position, (after, before) in enumerate(zip(state.held, self._seen.held, strict=True)):
            if after is not before:
                share_milli, memory_bytes = (
                    after.share_milli - before.share_milli,
                    after.memory_bytes - before.memory_bytes,
                )
                self.held[position] = _changed_by(self.held[position], share_milli, memory_bytes)
        self._seen = state
        self.version += 1

    def free(self, amounts: ClaimedAmounts) -> None:
        """Take in that the amounts will be given back."""
        self.held = freed(self.held, amounts)
        self.version += 1

    def take(self, amounts: ClaimedAmounts) -> None:
        """Take in that the amounts will be held too."""
        self.held = added(self.held, amounts)
        self.version += 1

    def checkpoint(self) -> tuple[OccupancyState, list[Allocation]]:
        """The present state, for `restore`."""
        return self._seen, list(self.held)

    def restore(self, checkpoint: tuple[OccupancyState, list[Allocation]]) -> None:
        """Take back all changes since a checkpoint, also in the index."""
        self._seen, self.held = checkpoint
        self._index.put(self._number, self._seen)
        self.version += 1

    def claimed_amounts(self, claims: Iterable[Claim]) -> ClaimedAmounts:
        """Claims by position, without devices that the worker no longer has."""
        position = self._index.entries[self._number].position
        present = (claim for claim in claims if claim.device_id in position)
        return tuple((position[claim.device_id], claim.share_milli, claim.memory_bytes) for claim in present)

    def can_hold(self, held: list[Allocation], amounts: ClaimedAmounts) -> bool:
        """Whether the devices have room for the amounts beside what is held of them."""
        capacity = self._seen.shape.capacity
        return all(
            held[p].share_milli + share_milli <= capacity[p][0] and held[p].memory_bytes + memory <= capacity[p][1]
            for p, share_milli, memory in amounts
        )

    def fits(self, alternative: Alternative, held: list[Allocation], reserved: ReservedCapacity | None) -> bool:
        """Whether the alternative fits beside what is held and what is reserved."""
        shape = self._seen.shape
        feasibility = self._index.matcher.feasibility(alternative, shape)
        if not feasibility.is_servable or self._seen.is_lost:
            return False
        reservation = None if reserved is None else reserved.by_shape.get(shape)
        reserved_needs = [NO_NEED] * len(held) if reservation is None else reservation.needs
        host = host_need(alternative)
        if host is not None:
            cpu = cpu_position(shape)
            if not has_room(shape, held, cpu, host, reserved_needs[cpu]):
                return False
        missing = device_count(alternative)
        for position, need in feasibility.needs.items():
            if has_room(shape, held, position, need, reserved_needs[position]):
                missing -= 1
                if missing == 0:
                    return True
        return False

    def fit(self, alternative: Alternative, held: list[Allocation], reserved: ReservedCapacity | None) -> Fit | None:
        """Where on the worker the alternative fits then, and how well."""
        state = self._index.matcher.state(self._seen.shape, self._seen.is_lost, tuple(held))
        result = self._index.match(alternative, state, reserved)
        return result if isinstance(result, Fit) else None

    def promise(self, fit: Fit) -> None:
        """Reserve what a fit takes of the worker, both now and then."""
        for position, need in fit.takes:
            self.held[position] = _changed_by(self.held[position], need.share_milli, need.memory_bytes)
        self._block()

    def claim(self, fit: Fit) -> None:
        """Reserve the whole devices of a fit, because it is not known when they are free."""
        for position, _ in fit.takes:
            share_milli, memory = self._seen.shape.capacity[position]
            self.held[position] = self.held[position]._replace(share_milli=share_milli, memory_bytes=memory)
        self._block()

    def _block(self) -> None:
        """Show the worker in the index as full as it is now or will be then, whichever is more."""
        self.version += 1
        held = tuple(
            _changed_by(now, max(0, then.share_milli - now.share_milli), max(0, then.memory_bytes - now.memory_bytes))
            for now, then in zip(self._seen.held, self.held, strict=True)
        )
        self._seen = self._index.matcher.state(self._seen.shape, self._seen.is_lost, held)
        self._index.put(self._number, self._seen)


def added(held: list[Allocation], amounts: ClaimedAmounts) -> list[Allocation]:
    """What is held after the amounts are taken too."""
    after = held.copy()
    for position, share_milli, memory in amounts:
        after[position] = _changed_by(after[position], share_milli, memory)
    return after


def freed(held: list[Allocation], amounts: ClaimedAmounts) -> list[Allocation]:
    """What is held after the amounts are given back."""
    return added(held, tuple((position, -share_milli, -memory) for position, share_milli, memory in amounts))


def _changed_by(held: Allocation, share_milli: int, memory_bytes: int) -> Allocation:
    if not (share_milli or memory_bytes):
        return held
    return Allocation(max(0, held.share_milli + share_milli), max(0, held.memory_bytes + memory_bytes), held.granted_s)
