"""Members of a gang with equal requests, and how many of them fit one after the other on a worker."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from hetero_airflow.matching.feasibility import device_count
from hetero_airflow.matching.matcher import Fit, OccupancyState
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.request import Alternative, DeviceRequest


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
