"""The idle cluster: where workers are, and which gangs fit when nothing is leased."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property

from hetero_airflow.matching.gangs.placement import GangPlacer, gang_level
from hetero_airflow.matching.gangs.regions import Regions
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.shapes import Shape, WorkerEntry
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.units import MILLI_PER_DEVICE

_ANY_TIME = datetime.fromtimestamp(0, UTC)
"""The time of a grant makes no difference on an idle worker."""


class IdleCluster:
    """The workers as if nothing were leased. It holds for every index of the same workers."""

    def __init__(self, entries: list[WorkerEntry], matcher: Matcher) -> None:
        self.entries = entries
        self._matcher = matcher
        self._fits: dict[tuple[str, ...], bool] = {}

    @cached_property
    def regions(self) -> Regions:
        """Where the workers are."""
        return Regions(self.entries)

    @cached_property
    def _placer(self) -> GangPlacer:
        idle = Snapshot(0, tuple(entry.worker for entry in self.entries))
        return GangPlacer(WorkerIndex(self._matcher, idle), self.regions, _ANY_TIME)

    def fits_when_idle(self, requests: Sequence[DeviceRequest]) -> bool:
        """Whether a gang with these requests could be placed on the workers, with the devices that are healthy now."""
        key = tuple(request.fingerprint for request in requests)
        if key not in self._fits:
            self._fits[key] = self._placer.place(requests) is not None
        return self._fits[key]

    def member_capacity(self, alternative: Alternative, limit: int) -> int:
        """How many members with this alternative fit at the same time, up to a limit."""
        return self._placer.member_capacity(alternative, limit)

    def max_members(self, alternative: Alternative) -> int:
        """An upper bound of the members that could be placed at the same time, with all workers online and healthy."""
        bounds: dict[Shape, int] = {}
        regions = self.regions.at(gang_level([alternative]))
        sums = (sum(self._bound(self.entries[number], alternative, bounds) for number in region) for region in regions)
        return max(sums, default=0)

    def _bound(self, entry: WorkerEntry, alternative: Alternative, bounds: dict[Shape, int]) -> int:
        shape = entry.shape
        if shape not in bounds:
            suitable = self._matcher.feasibility(alternative, shape).suitable
            if alternative.kind == "cpu":
                bounds[shape] = max((len(shape.devices[p].cores) // alternative.count for p in suitable), default=0)
            elif alternative.share is not None:
                bounds[shape] = len(suitable) * (MILLI_PER_DEVICE // alternative.share_milli)
            else:
                bounds[shape] = len(suitable) // alternative.count
        return bounds[shape]
