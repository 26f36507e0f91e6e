"""Regions: the workers by host, rack and site, and the bandwidth from each worker to others."""

from collections.abc import Iterable, Sequence

from hetero_airflow.matching.bandwidth import common_level, network_bytes_per_s_at, worker_location
from hetero_airflow.matching.shapes import WorkerEntry
from hetero_airflow.model.devices.link_speeds import (
    SOCKET_BYTES_PER_S,
    network_bytes_per_s,
    pcie_bytes_per_s,
    wide_area_bytes_per_s,
)
from hetero_airflow.model.topology import Level
from hetero_airflow.model.worker import Worker

WIDE_LEVELS = (Level.HOST, Level.RACK, Level.SITE, Level.ANYWHERE)
"""The levels that workers can share, the nearest first."""


def reach_of(worker: Worker) -> dict[Level, float]:
    """Level → the bandwidth to workers that share it, if they are no slower: by accelerator, card and site."""
    paths = (pcie_bytes_per_s(device) for device in worker.devices if device.kind != "cpu")
    path = min(paths, default=SOCKET_BYTES_PER_S)
    path = min(path, SOCKET_BYTES_PER_S)
    card, wide_area = network_bytes_per_s(worker.labels), wide_area_bytes_per_s(worker.labels)
    return {Level.HOST: path} | {
        level: min(path, network_bytes_per_s_at(level, card, wide_area)) for level in WIDE_LEVELS[1:]
    }


class Regions:
    """The hosts, racks and sites of the workers of an index; a worker is known by its number there.

    A host without a known rack is its own rack.
    """

    def __init__(self, entries: Sequence[WorkerEntry]) -> None:
        reaches = [reach_of(entry.worker) for entry in entries]
        self._locations = locations = [worker_location(entry.worker) for entry in entries]
        numbers = range(len(entries))
        self.at: dict[Level, list[tuple[int, ...]]] = {
            Level.HOST: _grouped((locations[n], n) for n in numbers),
            Level.RACK: _grouped((locations[n][:2] if locations[n].rack else locations[n], n) for n in numbers),
            Level.SITE: _grouped((locations[n].site, n) for n in numbers),
            Level.ANYWHERE: [tuple(numbers)] if entries else [],
        }
        """Level → the sets of workers that share it, each ascending, ordered by their first worker."""
        self._reach = {level: [reach[level] for reach in reaches] for level in WIDE_LEVELS}
        self.number = {
            level: {worker: number for number, region in enumerate(regions) for worker in region}
            for level, regions in self.at.items()
        }
        """Level → worker → the number of its region at that level."""
        self.shared = {level: self._speeds(level) for level in WIDE_LEVELS}
        """Level → (number, speeds) of the regions with several workers; speeds are the different bandwidths of these
        workers. The fastest speed and region come first."""

    def _speeds(self, level: Level) -> list[tuple[int, tuple[float, ...]]]:
        reach = self._reach[level]
        speeds = [
            (number, tuple(sorted({reach[worker] for worker in region}, reverse=True)))
            for number, region in enumerate(self.at[level])
            if len(region) > 1
        ]
        return sorted(speeds, key=lambda pair: (-pair[1][0], pair[0]))

    def speed(self, workers: Sequence[int]) -> float:
        """The bandwidth between several workers: that of the slowest, at the level that all share."""
        level = common_level([self._locations[worker] for worker in workers])
        assert level is not None, "the bandwidth of one worker to itself has no limit"
        return min(self._reach[level][worker] for worker in workers)

    def fast_part(self, region: Sequence[int], level: Level, speed: float) -> Sequence[int]:
        """The workers of a region with at least that bandwidth to others at that level."""
        reach = self._reach[level]
        return [worker for worker in region if reach[worker] >= speed]


def _grouped(pairs: Iterable[tuple[object, int]]) -> list[tuple[int, ...]]:
    groups: dict[object, list[int]] = {}
    for key, number in pairs:
        groups.setdefault(key, []).append(number)
    return [tuple(group) for group in groups.values()]
