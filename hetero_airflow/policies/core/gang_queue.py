"""The gangs of a queue in one decision: which members are missing, where a whole gang fits, and what prevents it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter

from hetero_airflow.matching.gangs.placement import GangFit, GangPlacer, IdleCluster, gang_level
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.topology import Level
from hetero_airflow.policies.core.topology_wait_budget import without_topology


def group_by_gang(queue: Sequence[PendingRequest]) -> Iterator[tuple[PendingRequest, ...]]:
    """The queue in units: single requests, and all members of a gang together at the place of the first of them."""
    gangs: defaultdict[str, list[PendingRequest]] = defaultdict(list)
    for pending in queue:
        if pending.gang:
            gangs[pending.gang].append(pending)
    for pending in queue:
        if not pending.gang:
            yield (pending,)
        elif pending.gang in gangs:
            yield tuple(gangs.pop(pending.gang))


class GangQueue:
    """The gangs of one decision.

    It ignores where running members of a gang are: a gang is whole again once its pending members are placed.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pending: Iterable[PendingRequest],
        index: WorkerIndex,
        idle_cluster: IdleCluster,
        now: datetime,
    ) -> None:
        self._index = index
        self._idle_cluster = idle_cluster
        self._now = now
        self._members: defaultdict[str, list[PendingRequest]] = defaultdict(list)
        for member in sorted((request for request in pending if request.gang), key=attrgetter("id")):
            self._members[member.gang].append(member)
        holders = snapshot.holders.values() if self._members else ()
        self._holding = Counter(holder.gang for holder in holders if holder.gang)
        self._placers: dict[ReservedCapacity | None, GangPlacer] = {}
        self._blocked: dict[str, Reason | None] = {}
        self._misfits: set[tuple[tuple[str, ...], ReservedCapacity | None]] = set()
        """(requests, what is reserved) that do not fit; they never will, since a decision only takes capacity."""
        self._obstacles: dict[tuple[str, ...], tuple[int, tuple[ReasonCode, str]]] = {}
        """Requests → the version of the index for which the obstacle was computed, and the obstacle."""

    def _placer(self, reserved: ReservedCapacity | None) -> GangPlacer:
        """Places gangs on what is free now, less what is reserved."""
        return GangPlacer(self._index, self._idle_cluster.regions, self._now, reserved)

    def blocked(self, gang: str) -> Reason | None:
        """Why the gang can't be placed even on idle workers: members are missing, or the workers are too few."""
        if gang not in self._blocked:
            self._blocked[gang] = self._why_blocked(gang)
        return self._blocked[gang]

    def _why_blocked(self, gang: str) -> Reason | None:
        members = self._members[gang]
        size = members[0].gang_size
        present = len(members) + self._holding[gang]
        if present < size:
            return Reason(ReasonCode.GANG, f"all {size} members of gang {gang}", f"{present} of {size} queued")
        requests = [member.request for member in members]
        if self._idle_cluster.fits_when_idle(requests):
            return None
        capacity = max(
            self._idle_cluster.member_capacity(alternative, size) for alternative in requests[0].alternatives
        )
        if not _are_equal(requests):
            found = "no room for all of them, even when all workers are idle"
            return Reason(ReasonCode.GANG, _gang_text(members), found)
        most = max(self._idle_cluster.max_members(alternative) for alternative in requests[0].alternatives)
        code = ReasonCode.GANG if most >= len(members) else ReasonCode.COUNT
        if code is ReasonCode.COUNT and gang_level(requests[0].alternatives) is not Level.ANYWHERE:
            code = ReasonCode.TOPOLOGY
        found = f"room for {capacity} at the same time, even when all workers are idle"
        return Reason(code, _gang_text(members), found)

    def fit(self, members: Sequence[PendingRequest], reserved: ReservedCapacity | None) -> GangFit | None:
        """Where all these members fit now, beside what is reserved."""
        key = _fingerprints(members)
        if (key, reserved) in self._misfits:
            return None
        if reserved not in self._placers:
            self._placers[reserved] = self._placer(reserved)
        gang_fit = self._placers[reserved].place([member.request for member in members])
        if gang_fit is None:
            self._misfits.add((key, reserved))
        return gang_fit

    def obstacle(self, members: Sequence[PendingRequest]) -> Reason:
        """What prevents a gang that would fit on idle workers."""
        key = _fingerprints(members)
        cached = self._obstacles.get(key)
        if cached is None or cached[0] != self._index.version:
            obstacle = self._find_obstacle([member.request for member in members])
            cached = self._obstacles[key] = (self._index.version, obstacle)
        code, found = cached[1]
        return Reason(code, _gang_text(members), found)

    def _find_obstacle(self, requests: Sequence[DeviceRequest]) -> tuple[ReasonCode, str]:
        placer = self._placer(None)
        if placer.place(requests) is not None:
            return ReasonCode.RESERVED, "a fit that is reserved for an earlier request"
        found = "no room for all at the same time"
        if _are_equal(requests):
            capacity = max(
                placer.member_capacity(alternative, len(requests)) for alternative in requests[0].alternatives
            )
            found = f"room for {capacity} at the same time"
        has_topology = any(alternative.topology for request in requests for alternative in request.alternatives)
        if has_topology and placer.place([without_topology(request) for request in requests]) is not None:
            return ReasonCode.SCATTERED, f"{found} that close together"
        return ReasonCode.BUSY, found

    def summary(self, members: Sequence[PendingRequest], fit: GangFit) -> str:
        """A placement of a gang as a person reads it."""
        workers = len(fit.workers)
        text = f"placed with gang {members[0].gang} of {len(members)} on {workers} worker{'s' if workers > 1 else ''}"
        if fit.bottleneck is not None:
            text += f", joined by {fit.bottleneck}"
        return text


def _fingerprints(members: Sequence[PendingRequest]) -> tuple[str, ...]:
    return tuple(member.request.fingerprint for member in members)


def _are_equal(requests: Sequence[DeviceRequest]) -> bool:
    return len({request.fingerprint for request in requests}) == 1


def _gang_text(members: Sequence[PendingRequest]) -> str:
    requests = list(dict.fromkeys(str(member.request) for member in members))
    each = f"{requests[0]} each" if len(requests) == 1 else "; ".join(requests)
    return f"all {len(members)} of gang {members[0].gang}, {each}"
