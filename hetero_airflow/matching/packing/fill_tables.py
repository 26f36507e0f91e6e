"""Tables of the expected fill of a worker: how much of it random arrivals of the mix will still take.

Each table is a dynamic program over arrivals; an arriving request is placed if it fits. All amounts are thousandths of
accelerators.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np

from hetero_airflow.matching.packing.demand import DeviceDemand, Floats
from hetero_airflow.units import MILLI_PER_DEVICE

HOLE_ARRIVALS = 80
IDLE_ARRIVALS = 10
HOST_ARRIVALS = 20
"""Number of arrivals at a hole, at the idle accelerators of a worker, and at its cores or memory. Chosen, like
`PROTECTION`, on orders of openb's mixes with seeds 1000 to 1003. Twice or half of them costs at most 0.1 points of
allocation, except half of IDLE_ARRIVALS: then too many workers are in use for requests of 8 to find a whole one."""

PROTECTION = 0.015
"""The value of a set of idle accelerators beyond its parts, relative to the root of the demand for such sets."""

GRAIN_MILLI = 50
HOST_STEPS = 96
"""The grid of `host_table`."""

WeightedDemands = Sequence[tuple[DeviceDemand, float]]
"""Demands for accelerators that may run on the worker, with their parts of all such demands of the mix."""


@dataclass(frozen=True, eq=False)
class FillTables:
    """The expected fill of workers with the same devices and capacity."""

    hole: Floats
    """[1001] for one accelerator, by its free part; idle ones are in `idle`."""
    idle: Floats
    """[n + 1] for a number of idle accelerators."""
    protection: Floats
    """[n + 1] the additional value of idle accelerators as sets."""
    by_cores: Floats
    """[grains, steps] the factor of the fill if only a part of the cores is free."""
    by_memory: Floats
    """The same for host memory."""


def fill_tables(demands: WeightedDemands, devices: int, cores_milli: int, memory_bytes: int) -> FillTables:
    """The tables of workers with that many accelerators, cores and bytes."""
    hole = hole_table(demands)
    return FillTables(
        hole=hole,
        idle=idle_table(demands, hole, devices),
        protection=protection_table(demands, devices),
        by_cores=host_table([(demand, part, demand.cores_milli) for demand, part in demands], devices, cores_milli),
        by_memory=host_table([(demand, part, demand.memory_bytes) for demand, part in demands], devices, memory_bytes),
    )


def hole_table(demands: WeightedDemands) -> Floats:
    """[1001] the fill of a free part of one accelerator.

    >>> half = hole_table([(DeviceDemand(500, 1, 0, 0), 1.0)])
    >>> half[[499, 500, 999, 1000]].tolist()
    [0.0, 500.0, 500.0, 1000.0]
    """
    sizes: Counter[int] = Counter()
    for demand, part in demands:
        if demand.devices == 1:
            sizes[demand.share_milli] += part  # type: ignore[assignment]
    fill = np.zeros(MILLI_PER_DEVICE + 1)
    for _ in range(HOLE_ARRIVALS):
        after = fill.copy()
        for share_milli, part in sorted(sizes.items()):
            after[share_milli:] += part * (share_milli + fill[: len(fill) - share_milli] - fill[share_milli:])
        fill = after
    return fill


def idle_table(demands: WeightedDemands, hole: Floats, devices: int) -> Floats:
    """[devices + 1] the fill of a number of idle accelerators; a share of an idle one leaves a hole."""
    fill = np.zeros(devices + 1)
    for _ in range(IDLE_ARRIVALS):
        after = fill.copy()
        for demand, part in demands:
            if demand.devices <= devices:
                left = 0.0 if demand.share_milli == MILLI_PER_DEVICE else hole[MILLI_PER_DEVICE - demand.share_milli]
                value = demand.share_milli * demand.devices + left
                after[demand.devices :] += part * (value + fill[: len(fill) - demand.devices] - fill[demand.devices :])
        fill = after
    return fill


def protection_table(demands: WeightedDemands, devices: int) -> Floats:
    """[devices + 1] the value of idle sets, summed over the set sizes that the mix asks for; see `PROTECTION`."""
    amounts: dict[int, float] = {}
    for demand, part in demands:
        amounts[demand.devices] = amounts.get(demand.devices, 0.0) + part * demand.share_milli * demand.devices
    total = sum(amounts.values())
    roots = np.zeros(devices + 1)
    for count, amount in amounts.items():
        if 1 < count <= devices:
            roots[count:] += np.sqrt(amount / total)
    return PROTECTION * MILLI_PER_DEVICE * np.arange(devices + 1) * roots


def host_table(demands: Sequence[tuple[DeviceDemand, float, int]], devices: int, capacity: int) -> Floats:
    """[grains of accelerators, steps of a host resource] the fill, relative to that with an unlimited host resource.

    :param demands: demands, their parts, and what each takes of the host resource
    :param capacity: the host resource of an idle worker, which is the last step
    """
    grains = devices * MILLI_PER_DEVICE // GRAIN_MILLI
    groups: dict[tuple[int, int], list[float]] = {}
    for demand, part, amount in demands:
        wide = -(-demand.share_milli * demand.devices // GRAIN_MILLI)
        deep = -(-amount * HOST_STEPS // capacity) if amount else 0
        if wide <= grains and deep <= HOST_STEPS:
            group = groups.setdefault((wide, deep), [0.0, 0.0])
            group[0] += part
            group[1] += part * demand.share_milli * demand.devices
    limited = _fill(groups, grains, HOST_STEPS)
    unlimited = _fill(_without_depth(groups), grains, 0)
    return np.divide(limited, unlimited, out=np.ones_like(limited), where=unlimited > 0)


def _without_depth(groups: dict[tuple[int, int], list[float]]) -> dict[tuple[int, int], list[float]]:
    flat: dict[tuple[int, int], list[float]] = {}
    for (wide, _), (part, value) in groups.items():
        group = flat.setdefault((wide, 0), [0.0, 0.0])
        group[0] += part
        group[1] += value
    return flat


def _fill(groups: dict[tuple[int, int], list[float]], grains: int, steps: int) -> Floats:
    def arrive(fill: Floats, _: int) -> Floats:
        after = fill.copy()
        for (wide, deep), (part, value) in sorted(groups.items()):
            rest = fill[: grains + 1 - wide, : steps + 1 - deep]
            after[wide:, deep:] += value + part * (rest - fill[wide:, deep:])
        return after

    *_, fill = accumulate(repeat(0, HOST_ARRIVALS), arrive, initial=np.zeros((grains + 1, steps + 1)))
    return fill
