"""Bandwidth between the devices of a placement, on one worker or several: the slowest pair decides.

The cluster is a tree of levels (`model.topology.Level`): device, NUMA node, host, rack, site. In addition, devices of a
host can have direct links. The bandwidth of a pair is that of the narrowest part of its path up and down the tree, or
that of its direct link if that is faster.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.link_speeds import (
    OVERSUBSCRIPTION,
    SOCKET_BYTES_PER_S,
    direct_link_bytes_per_s,
    network_bytes_per_s,
    pcie_bytes_per_s,
    wide_area_bytes_per_s,
)
from hetero_airflow.model.topology import RACK_LABEL, SITE_LABEL, Level
from hetero_airflow.model.worker import Worker

WorkerDevices = tuple[Worker, Sequence[Device]]
"""Devices of one worker."""


class Bottleneck(NamedTuple):
    """The bandwidth of the slowest pair of a set of devices, and the level of the farthest pair."""

    bytes_per_s: float
    level: Level

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.3g} GB/s ({self.level})"


class WorkerLocation(NamedTuple):
    """Where a worker is. Two locations that are equal up to a level share that level."""

    site: str
    rack: str
    """Empty if unknown: such a worker shares its rack with no other."""
    host: str

    def level(self, location: "WorkerLocation") -> Level:
        """The nearest level beyond the worker itself that both share."""
        if self == location:
            return Level.HOST
        if self.site != location.site:
            return Level.ANYWHERE
        return Level.RACK if self.rack and self.rack == location.rack else Level.SITE


def worker_location(worker: Worker) -> WorkerLocation:
    """Where a worker is, from its labels.

    >>> from hetero_airflow.testing import a_worker
    >>> a, b = (worker_location(a_worker(name, labels={"hetero/rack": "r1"})) for name in "ab")
    >>> a.level(b)
    <Level.RACK: 'rack'>
    """
    return WorkerLocation(worker.labels.get(SITE_LABEL, ""), worker.labels.get(RACK_LABEL, ""), worker.host)


def device_level(worker: Worker, first: Device, second: Device) -> Level:
    """The level that two devices of a worker share.

    If no NUMA node of the worker's devices is known, the host counts as one node.
    """
    if second.id in first.peers or first.id in second.peers:
        return Level.NVLINK
    if first.parent is not None and first.parent == second.parent:
        return Level.NUMA
    if first.numa_node is None and second.numa_node is None:
        return Level.HOST if has_numa_nodes(worker.devices) else Level.NUMA
    return Level.NUMA if first.numa_node == second.numa_node else Level.HOST


def has_numa_nodes(devices: Iterable[Device]) -> bool:
    """Whether the NUMA node of any accelerator is known."""
    return any(device.numa_node is not None for device in devices if device.kind != "cpu")


def pair_bytes_per_s(
    level: Level, first: Device, second: Device, labels: tuple[Mapping[str, str], Mapping[str, str]]
) -> float:
    """The bandwidth of two devices that share that level, on workers with those labels."""
    path = min(pcie_bytes_per_s(first), pcie_bytes_per_s(second))
    if level is Level.NVLINK:
        return max(path, min(direct_link_bytes_per_s(device.vendor, device.model) for device in (first, second)))
    if level is Level.NUMA:
        return path
    path = min(path, SOCKET_BYTES_PER_S)
    if level is Level.HOST:
        return path
    card, wide_area = min(map(network_bytes_per_s, labels)), min(map(wide_area_bytes_per_s, labels))
    return min(path, network_bytes_per_s_at(level, card, wide_area))


def network_bytes_per_s_at(level: Level, card: float, wide_area: float) -> float:
    """The bandwidth of the network between hosts that share that level.

    :param card: bandwidth of the slower of their network cards
    :param wide_area: bandwidth of the slower of their sites' links
    """
    if level is Level.RACK:
        return card
    return card / OVERSUBSCRIPTION if level is Level.SITE else min(card / OVERSUBSCRIPTION, wide_area)


def bottleneck(parts: Sequence[WorkerDevices]) -> Bottleneck | None:
    """The slowest pair of the devices of a placement; None if there is only one device.

    Between workers it does not check each pair: at the level of the two farthest workers, every worker has a partner.
    So the slowest device, card and site link decide, and no pair within a worker is slower or farther apart.

    >>> from hetero_airflow.testing import a_worker
    >>> workers = [a_worker(name) for name in "ab"]
    >>> str(bottleneck([(worker, worker.devices[1:]) for worker in workers]))
    '3.12 GB/s (site)'
    """
    level = common_level([worker_location(worker) for worker, _ in parts])
    if level is not None:
        slowest = min((device for _, devices in parts for device in devices), key=pcie_bytes_per_s)
        labels = [worker.labels for worker, _ in parts]
        card, link = min(labels, key=network_bytes_per_s), min(labels, key=wide_area_bytes_per_s)
        return Bottleneck(pair_bytes_per_s(level, slowest, slowest, (card, link)), level)
    pairs = [
        Bottleneck(pair_bytes_per_s(level, first, second, (worker.labels, worker.labels)), level)
        for worker, devices in parts
        for first, second in combinations(devices, 2)
        for level in (device_level(worker, first, second),)
    ]
    if not pairs:
        return None
    farthest = max((pair.level for pair in pairs), key=lambda level: level.rank)
    return Bottleneck(min(pair.bytes_per_s for pair in pairs), farthest)


def common_level(locations: Sequence[WorkerLocation]) -> Level | None:
    """The nearest level that all of several workers share; None for one worker.

    Levels are a tree, so the farthest location from the first one is as far as any two are from each other.
    """
    first, *others = locations
    return max((first.level(other) for other in others), key=lambda level: level.rank, default=None)
