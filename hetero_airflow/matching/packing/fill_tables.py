"""How much of a worker will still be sold: expectations over random arrivals of a mix, as tables.

Each is a dynamic program over arrivals: with each, the request that arrives is placed if it fits what is left.
All amounts are thousandths of accelerators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np

from hetero_airflow.matching.packing.demand import DeviceDemand, Floats
from hetero_airflow.units import MILLI_PER_DEVICE

HOLE_ARRIVALS = 80
IDLE_ARRIVALS = 10
BESIDE_ARRIVALS = 20
"""How many arrivals a hole, the idle accelerators of a worker, and a worker's cores or memory see. Chosen, like
`PROTECTION`, on orders of openb's mixes with seeds 1000 to 1003; twice or half of them costs at most 0.1 points
of allocation, save half of IDLE_ARRIVALS, with which too many workers are begun for requests of 8 to find one whole."""

PROTECTION = 0.015
"""What a set of idle accelerators is worth beyond its parts, by the root of the demand for such sets."""

GRAIN_MILLI = 50
BESIDE_STEPS = 96
"""The grid of `beside_table`."""

WeightedDemands = Sequence[tuple[DeviceDemand, float]]
"""Asks for accelerators, with their parts of all such asks of the mix; here those that may run on the worker."""


@dataclass(frozen=True, eq=False)
class FillTables:
    """What workers with the same devices and capacity are expected to sell."""

    hole: Floats
    """[1001] of one accelerator, by its free part; an idle one is in `idle`."""
    idle: Floats
    """[n + 1] of so many idle ones."""
    protection: Floats
    """[n + 1] what is added for the sets that they make up."""
    by_cores: Floats
    """[grains, steps] what part of it is sold if only so many of the cores are free."""
    by_memory: Floats
    """The same of host memory."""


def fill_tables(here: WeightedDemands, devices: int, cores_milli: int, memory_bytes: int) -> FillTables:
    """The tables of workers with that many accelerators, cores and bytes."""
    hole = hole_table(here)
    return FillTables(
        hole=hole,
        idle=idle_table(here, hole, devices),
        protection=protection_table(here, devices),
        by_cores=beside_table([(ask, part, ask.cores_milli) for ask, part in here], devices, cores_milli),
        by_memory=beside_table([(ask, part, ask.memory_bytes) for ask, part in here], devices, memory_bytes),
    )


def hole_table(here: WeightedDemands) -> Floats:
    """[1001] what is sold of a part of one accelerator.

    >>> half = hole_table([(DeviceDemand(500, 1, 0, 0), 1.0)])
    >>> half[[499, 500, 999, 1000]].tolist()
    [0.0, 500.0, 500.0, 1000.0]
    """
    sizes: Counter[int] = Counter()
    for ask, part in here:
        if ask.devices == 1:
            sizes[ask.share_milli] += part  # type: ignore[assignment]
    sold = np.zeros(MILLI_PER_DEVICE + 1)
    for _ in range(HOLE_ARRIVALS):
        after = sold.copy()
        for milli, part in sorted(sizes.items()):
            after[milli:] += part * (milli + sold[: len(sold) - milli] - sold[milli:])
        sold = after
    return sold


def idle_table(here: WeightedDemands, hole: Floats, devices: int) -> Floats:
    """[devices + 1] what is sold of so many idle accelerators; a share begins one, of which a hole is left."""
    sold = np.zeros(devices + 1)
    for _ in range(IDLE_ARRIVALS):
        after = sold.copy()
        for ask, part in here:
            if ask.devices <= devices:
                left = 0.0 if ask.share_milli == MILLI_PER_DEVICE else hole[MILLI_PER_DEVICE - ask.share_milli]
                value = ask.share_milli * ask.devices + left
                after[ask.devices :] += part * (value + sold[: len(sold) - ask.devices] - sold[ask.devices :])
        sold = after
    return sold


def protection_table(here: WeightedDemands, devices: int) -> Floats:
    """[devices + 1] the worth of idle sets: for each size of set that is asked for, in the measure of `PROTECTION`."""
    demand: dict[int, float] = {}
    for ask, part in here:
        demand[ask.devices] = demand.get(ask.devices, 0.0) + part * ask.share_milli * ask.devices
    total = sum(demand.values())
    roots = np.zeros(devices + 1)
    for count, amount in demand.items():
        if 1 < count <= devices:
            roots[count:] += np.sqrt(amount / total)
    return PROTECTION * MILLI_PER_DEVICE * np.arange(devices + 1) * roots


def beside_table(here: Sequence[tuple[DeviceDemand, float, int]], devices: int, capacity: int) -> Floats:
    """[grains of accelerators, steps of another resource] what part is sold, of what were sold if that were endless.

    :param here: asks, their parts, and what each takes of the other resource
    :param capacity: the other resource of an idle worker, which is its last step
    """
    grains = devices * MILLI_PER_DEVICE // GRAIN_MILLI
    groups: dict[tuple[int, int], list[float]] = {}
    for ask, part, amount in here:
        wide = -(-ask.share_milli * ask.devices // GRAIN_MILLI)
        deep = -(-amount * BESIDE_STEPS // capacity) if amount else 0
        if wide <= grains and deep <= BESIDE_STEPS:
            group = groups.setdefault((wide, deep), [0.0, 0.0])
            group[0] += part
            group[1] += part * ask.share_milli * ask.devices
    limited = _sold(groups, grains, BESIDE_STEPS)
    endless = _sold(_without_depth(groups), grains, 0)
    return np.divide(limited, endless, out=np.ones_like(limited), where=endless > 0)


def _without_depth(groups: dict[tuple[int, int], list[float]]) -> dict[tuple[int, int], list[float]]:
    flat: dict[tuple[int, int], list[float]] = {}
    for (wide, _), (part, value) in groups.items():
        group = flat.setdefault((wide, 0), [0.0, 0.0])
        group[0] += part
        group[1] += value
    return flat


def _sold(groups: dict[tuple[int, int], list[float]], grains: int, steps: int) -> Floats:
    def arrive(sold: Floats, _: int) -> Floats:
        after = sold.copy()
        for (wide, deep), (part, value) in sorted(groups.items()):
            rest = sold[: grains + 1 - wide, : steps + 1 - deep]
            after[wide:, deep:] += value + part * (rest - sold[wide:, deep:])
        return after

    *_, sold = accumulate(repeat(0, BESIDE_ARRIVALS), arrive, initial=np.zeros((grains + 1, steps + 1)))
    return sold
