"""The workers of a fleet by where they stand: hosts, racks and sites, and how fast each worker reaches others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hetero_airflow.matching.bandwidth import common_level, network_bytes_per_s_at, worker_location
from hetero_airflow.matching.shapes import WorkerEntry
from hetero_airflow.model.link_speeds import (
    SOCKET_BYTES_PER_S,
    network_bytes_per_s,
    pcie_bytes_per_s,
    wide_area_bytes_per_s,
)
from hetero_airflow.model.topology import Level
from hetero_airflow.model.worker import Worker

WIDE_LEVELS = (Level.HOST, Level.RACK, Level.SITE, Level.ANYWHERE)
"""The levels that workers can have in common, the nearest first."""


class Uplink(NamedTuple):
    """How fast a worker reaches others, in bytes a second: at most as its slowest accelerator, its card, its site."""

    devices: float
    network: float
    wide_area: float

    def reach(self, level: Level) -> float:
        """To workers that have that level in common with it, if they are no slower."""
        path = min(self.devices, SOCKET_BYTES_PER_S)
        return path if level is Level.HOST else min(path, network_bytes_per_s_at(level, self.network, self.wide_area))


def worker_uplink(worker: Worker) -> Uplink:
    """How fast the worker reaches others."""
    paths = [pcie_bytes_per_s(device) for device in worker.devices if device.kind != "cpu"]
    slowest = min(paths, default=SOCKET_BYTES_PER_S)
    return Uplink(slowest, network_bytes_per_s(worker.labels), wide_area_bytes_per_s(worker.labels))


class Regions:
    """Where the workers of a fleet stand; workers are known by their number in it.

    A host of which the rack is not known is a rack of its own.
    """

    def __init__(self, entries: Sequence[WorkerEntry]) -> None:
        uplinks = [worker_uplink(entry.worker) for entry in entries]
        self._spots = spots = [worker_location(entry.worker) for entry in entries]
        everyone = range(len(entries))
        self._regions: dict[Level, list[tuple[int, ...]]] = {
            Level.HOST: _grouped((spots[number], number) for number in everyone),
            Level.RACK: _grouped((spots[n][:2] if spots[n].rack else spots[n], n) for n in everyone),
            Level.SITE: _grouped((spots[number].site, number) for number in everyone),
            Level.ANYWHERE: [tuple(everyone)] if entries else [],
        }
        self._reach = {level: [one.reach(level) for one in uplinks] for level in WIDE_LEVELS}
        self._numbers = {
            level: {worker: number for number, region in enumerate(regions) for worker in region}
            for level, regions in self._regions.items()
        }
        self._shared = {level: self._speeds(level) for level in WIDE_LEVELS}

    def _speeds(self, level: Level) -> list[tuple[int, tuple[float, ...]]]:
        reach = self._reach[level]
        speeds = [
            (number, tuple(sorted({reach[worker] for worker in region}, reverse=True)))
            for number, region in enumerate(self._regions[level])
            if len(region) > 1
        ]
        return sorted(speeds, key=lambda pair: (-pair[1][0], pair[0]))

    def at(self, level: Level) -> Sequence[tuple[int, ...]]:
        """The sets of workers that have that level in common, each ascending, ordered by their first worker."""
        return self._regions[level]

    def number(self, level: Level, worker: int) -> int:
        """Which of the regions at that level the worker is in."""
        return self._numbers[level][worker]

    def shared(self, level: Level) -> Sequence[tuple[int, tuple[float, ...]]]:
        """The regions of several workers by number, each with the different speeds at which these reach each other.

        The fastest speed and region come first.
        """
        return self._shared[level]

    def speed(self, workers: Sequence[int]) -> float:
        """How fast several workers reach each other: the slowest of them, at the level that all have in common."""
        level = common_level([self._spots[worker] for worker in workers])
        assert level is not None, "one worker reaches itself at any speed"
        return min(self._reach[level][worker] for worker in workers)

    def fast_part(self, region: Sequence[int], level: Level, speed: float) -> Sequence[int]:
        """The workers of a region that reach others at that level with that speed or faster."""
        reach = self._reach[level]
        return [worker for worker in region if reach[worker] >= speed]


def _grouped(pairs: Iterable[tuple[object, int]]) -> list[tuple[int, ...]]:
    groups: dict[object, list[int]] = {}
    for key, number in pairs:
        groups.setdefault(key, []).append(number)
    return [tuple(group) for group in groups.values()]
