"""The gangs of a queue during one decision: who is missing, where a whole gang fits now, and what is in its way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter

from hetero_airflow.matching.gangs.idle_cluster import IdleCluster
from hetero_airflow.matching.gangs.placement import GangFit, GangPlacer, gang_level
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.topology import Level
from hetero_airflow.policies.core.topology_wait_budget import without_topology


def group_by_gang(queue: Sequence[PendingRequest]) -> Iterator[tuple[PendingRequest, ...]]:
    """The queue with the members of each gang together, at the place of the first of them."""
    gangs: defaultdict[str, list[PendingRequest]] = defaultdict(list)
    for one in queue:
        if one.gang:
            gangs[one.gang].append(one)
    for one in queue:
        if not one.gang:
            yield (one,)
        elif one.gang in gangs:
            yield tuple(gangs.pop(one.gang))


class GangQueue:
    """The gangs of one decision.

    Where members that run already stand is not looked at: a gang is whole again when those that came back are placed.

    :param ground: the workers of the fleet as gangs see them
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pending: Iterable[PendingRequest],
        fleet: WorkerIndex,
        ground: IdleCluster,
        now: datetime,
    ) -> None:
        self._fleet = fleet
        self._ground = ground
        self._now = now
        self._spread = snapshot.estimates.spread
        self._members: defaultdict[str, list[PendingRequest]] = defaultdict(list)
        for one in sorted((one for one in pending if one.gang), key=attrgetter("id")):
            self._members[one.gang].append(one)
        holders = snapshot.holders.values() if self._members else ()
        self._holding = Counter(one.gang for one in holders if one.gang)
        self._boards: dict[ReservedCapacity | None, GangPlacer] = {}
        self._blocked: dict[str, Reason | None] = {}
        self._misfits: set[tuple[tuple[str, ...], ReservedCapacity | None]] = set()
        """What the members ask, and beside what they do not fit: as long as things are only taken, they never will."""
        self._obstacles: dict[tuple[str, ...], tuple[int, tuple[ReasonCode, str]]] = {}
        """What the members ask → the version of the fleet at which it was asked what is in the way, and that."""

    def _board(self, keep: ReservedCapacity | None) -> GangPlacer:
        """What is free now, less what is kept."""
        fleet = self._fleet
        return GangPlacer(
            fleet,
            self._ground.regions,
            fleet.matcher,
            lambda alternative, state: fleet.outcome(alternative, state, keep),
            self._now,
        )

    def blocked(self, gang: str) -> Reason | None:
        """Why the gang can't be placed whatever is free: members are missing, or there is no room for all of them."""
        if gang not in self._blocked:
            self._blocked[gang] = self._why_blocked(gang)
        return self._blocked[gang]

    def _why_blocked(self, gang: str) -> Reason | None:
        members = self._members[gang]
        size = members[0].gang_size
        there = len(members) + self._holding[gang]
        if there < size:
            return Reason(ReasonCode.GANG, f"all {size} members of gang {gang}", f"{there} of {size} queued")
        requests = [one.request for one in members]
        if self._ground.fits_when_idle(requests):
            return None
        room = max(self._ground.idle_capacity(alternative, size) for alternative in requests[0].alternatives)
        if not _are_alike(requests):
            return Reason(
                ReasonCode.GANG, _gang_text(members), "no room for all of them, even when all workers are idle"
            )
        ever = max(self._ground.most(alternative) for alternative in requests[0].alternatives)
        code = ReasonCode.GANG if ever >= len(members) else ReasonCode.COUNT
        level = gang_level(requests[0].alternatives)
        if code is ReasonCode.COUNT and level is not Level.ANYWHERE:
            code = ReasonCode.TOPOLOGY
        return Reason(code, _gang_text(members), f"room for {room} at the same time, even when all workers are idle")

    def fit(self, members: Sequence[PendingRequest], keep: ReservedCapacity | None) -> GangFit | None:
        """Where all these members fit now, beside what is kept."""
        key = tuple(one.request.fingerprint for one in members)
        if (key, keep) in self._misfits:
            return None
        if keep not in self._boards:
            self._boards[keep] = self._board(keep)
        found = self._boards[keep].place([one.request for one in members])
        if found is None:
            self._misfits.add((key, keep))
        return found

    def obstacle(self, members: Sequence[PendingRequest]) -> Reason:
        """What is in the way of a gang that does not fit now, but would if all were idle."""
        key = tuple(one.request.fingerprint for one in members)
        known = self._obstacles.get(key)
        if known is None or known[0] != self._fleet.version:
            known = self._obstacles[key] = (self._fleet.version, self._obstacle([one.request for one in members]))
        code, found = known[1]
        return Reason(code, _gang_text(members), found)

    def _obstacle(self, requests: Sequence[DeviceRequest]) -> tuple[ReasonCode, str]:
        free = self._board(None)
        if free.place(requests) is not None:
            return ReasonCode.RESERVED, "a fit, which is kept for the first in the queue"
        found = "no room for all at the same time"
        if _are_alike(requests):
            room = max(free.room(alternative, len(requests)) for alternative in requests[0].alternatives)
            found = f"room for {room} at the same time"
        is_demanding = any(alternative.topology for request in requests for alternative in request.alternatives)
        if is_demanding and free.place([without_topology(request) for request in requests]) is not None:
            return ReasonCode.SCATTERED, f"{found} as near together as that"
        return ReasonCode.BUSY, found

    def words(self, members: Sequence[PendingRequest], fit: GangFit) -> str:
        """A placement of a gang in words."""
        workers = len(fit.workers)
        text = f"placed with gang {members[0].gang} of {len(members)} on {workers} worker{'s' if workers > 1 else ''}"
        if fit.bottleneck is not None:
            text += f", joined by {fit.bottleneck}"
        spread = self._spread.get(members[0].task, 1.0)
        is_spread = fit.bottleneck is not None and fit.bottleneck.level.rank > Level.HOST.rank
        return text + (f", at {spread:.2g} of its speed on one host" if is_spread and spread < 1 else "")


def _are_alike(requests: Sequence[DeviceRequest]) -> bool:
    return len({request.fingerprint for request in requests}) == 1


def _gang_text(members: Sequence[PendingRequest]) -> str:
    requests = list(dict.fromkeys(str(one.request) for one in members))
    each = f"{requests[0]} each" if len(requests) == 1 else "; ".join(requests)
    return f"all {len(members)} of gang {members[0].gang}, {each}"
