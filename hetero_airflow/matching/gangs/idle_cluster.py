"""What is true of gangs on the workers of a fleet whatever is leased: where workers stand, and what fits when idle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property

from hetero_airflow.matching.gangs.cluster_state import IdleClusterState
from hetero_airflow.matching.gangs.placement import GangPlacer, gang_level
from hetero_airflow.matching.gangs.regions import Regions
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.shapes import Shape, WorkerEntry
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.units import MILLI_PER_DEVICE

_ANY_TIME = datetime.fromtimestamp(0, UTC)
"""When something was granted is nothing that an idle worker depends on."""


class IdleCluster:
    """The workers of a fleet as gangs see them; holds for every fleet of the same workers."""

    def __init__(self, entries: list[WorkerEntry], matcher: Matcher) -> None:
        self.entries = entries
        self._matcher = matcher
        self._fits: dict[tuple[str, ...], bool] = {}

    @cached_property
    def regions(self) -> Regions:
        """Where they stand."""
        return Regions(self.entries)

    @cached_property
    def _idle(self) -> GangPlacer:
        matcher = self._matcher
        idle = IdleClusterState(self.entries, matcher)
        return GangPlacer(idle, self.regions, matcher, lambda a, state: matcher.outcome(a, state, None), _ANY_TIME)

    def fits_when_idle(self, requests: Sequence[DeviceRequest]) -> bool:
        """Whether a gang with these requests could be placed on the workers as they are now, if they were idle."""
        key = tuple(request.fingerprint for request in requests)
        if key not in self._fits:
            self._fits[key] = self._idle.place(requests) is not None
        return self._fits[key]

    def idle_capacity(self, alternative: Alternative, limit: int) -> int:
        """How many members that ask for this fit at the same time on idle workers, up to a limit."""
        return self._idle.room(alternative, limit)

    def most(self, alternative: Alternative) -> int:
        """No more members than this could ever be placed at the same time, were all workers seen, well and idle."""
        bounds: dict[Shape, int] = {}
        regions = self.regions.at(gang_level([alternative]))
        return max(
            (sum(self._bound(self.entries[n], alternative, bounds) for n in region) for region in regions), default=0
        )

    def _bound(self, entry: WorkerEntry, alternative: Alternative, bounds: dict[Shape, int]) -> int:
        if entry.shape not in bounds:
            feasibility = self._matcher.feasibility(alternative, entry.shape)
            if alternative.kind == "cpu":
                parts = max(
                    (len(entry.shape.devices[p].cores) // alternative.count for p in feasibility.suitable), default=0
                )
            elif alternative.share is not None:
                parts = len(feasibility.suitable) * (MILLI_PER_DEVICE // alternative.share_milli)
            else:
                parts = len(feasibility.suitable) // alternative.count
            bounds[entry.shape] = parts
        return bounds[entry.shape]
