"""How fast the devices of a placement reach each other, over one worker or many: the slowest pair decides.

The cluster is a tree of levels (`model.topology.Level`): device, NUMA node, host, rack, site; beside it the
direct links of the devices of a host. A pair's bandwidth is that of the narrowest part on its way up
the tree and down again, or of its direct link where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from hetero_airflow.model.device import Device
from hetero_airflow.model.link_speeds import (
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
    """The slowest pair of a set of devices, and how far apart the farthest pair is."""

    bytes_per_s: float
    level: Level

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.3g} GB/s ({self.level})"


class WorkerLocation(NamedTuple):
    """Where a worker stands. Two spots that are equal up to a level have that level in common."""

    site: str
    rack: str
    """Empty where it is not known: such a worker shares its rack with none."""
    host: str

    def level(self, other: WorkerLocation) -> Level:
        """The nearest level beyond the worker itself that both have in common."""
        if self == other:
            return Level.HOST
        if self.site != other.site:
            return Level.ANYWHERE
        return Level.RACK if self.rack and self.rack == other.rack else Level.SITE


def worker_location(worker: Worker) -> WorkerLocation:
    """Where a worker stands, by its labels.

    >>> from hetero_airflow.testing import a_worker
    >>> a, b = (worker_location(a_worker(name, labels={"hetero/rack": "r1"})) for name in "ab")
    >>> a.level(b)
    <Level.RACK: 'rack'>
    """
    return WorkerLocation(worker.labels.get(SITE_LABEL, ""), worker.labels.get(RACK_LABEL, ""), worker.host)


def device_level(worker: Worker, one: Device, other: Device) -> Level:
    """What two devices of a worker have in common.

    Where no device of the worker is known to belong to a NUMA node, the host is taken to be one node.
    """
    if other.id in one.peers or one.id in other.peers:
        return Level.NVLINK
    if one.parent is not None and one.parent == other.parent:
        return Level.NUMA
    if one.numa_node is None and other.numa_node is None:
        return Level.HOST if has_numa_nodes(worker.devices) else Level.NUMA
    return Level.NUMA if one.numa_node == other.numa_node else Level.HOST


def has_numa_nodes(devices: Iterable[Device]) -> bool:
    """Whether anything is known of the NUMA nodes of a worker's accelerators."""
    return any(device.numa_node is not None for device in devices if device.kind != "cpu")


def pair_bytes_per_s(
    level: Level, one: Device, other: Device, labels: tuple[Mapping[str, str], Mapping[str, str]]
) -> float:
    """Between two devices with that level in common, of workers with those labels."""
    path = min(pcie_bytes_per_s(one), pcie_bytes_per_s(other))
    if level is Level.NVLINK:
        link = min(direct_link_bytes_per_s(one.vendor, one.model), direct_link_bytes_per_s(other.vendor, other.model))
        return max(path, link)
    if level is Level.NUMA:
        return path
    path = min(path, SOCKET_BYTES_PER_S)
    if level is Level.HOST:
        return path
    return min(
        path,
        network_bytes_per_s_at(level, min(map(network_bytes_per_s, labels)), min(map(wide_area_bytes_per_s, labels))),
    )


def network_bytes_per_s_at(level: Level, card: float, wide_area: float) -> float:
    """What the network carries between hosts with that level in common, in bytes a second.

    :param card: of the slower of their cards
    :param wide_area: of the slower of their sites' links
    """
    if level is Level.RACK:
        return card
    return card / OVERSUBSCRIPTION if level is Level.SITE else min(card / OVERSUBSCRIPTION, wide_area)


def bottleneck(parts: Sequence[WorkerDevices]) -> Bottleneck | None:
    """The slowest pair of the devices of a placement; None where there is only one device.

    Between workers no pairs are looked at: at the level of the farthest two each worker has a partner, so the
    slowest device, card and site's link decide, and no pair within a worker is slower or farther apart.

    >>> from hetero_airflow.testing import a_worker
    >>> workers = [a_worker(name) for name in "ab"]
    >>> str(bottleneck([(worker, worker.devices[1:]) for worker in workers]))
    '3.12 GB/s (site)'
    """
    level = common_level([worker_location(worker) for worker, _ in parts])
    if level is not None:
        slowest = min((device for _, devices in parts for device in devices), key=pcie_bytes_per_s)
        card, link = (
            min((w.labels for w, _ in parts), key=speed) for speed in (network_bytes_per_s, wide_area_bytes_per_s)
        )
        return Bottleneck(pair_bytes_per_s(level, slowest, slowest, (card, link)), level)
    found = [
        Bottleneck(pair_bytes_per_s(level, one, other, (worker.labels, worker.labels)), level)
        for worker, devices in parts
        for one, other in combinations(devices, 2)
        for level in (device_level(worker, one, other),)
    ]
    if not found:
        return None
    return Bottleneck(min(one.bytes_per_s for one in found), max((one.level for one in found), key=lambda n: n.rank))


def common_level(spots: Sequence[WorkerLocation]) -> Level | None:
    """The level that all of several workers have in common; None for one worker.

    The first one is as far from some other as any two are from each other: levels are a tree.
    """
    return max((spots[0].level(other) for other in spots[1:]), key=lambda level: level.rank, default=None)
