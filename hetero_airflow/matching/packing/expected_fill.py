"""Expected fill: place where the expected future use of a worker's accelerators falls least.

This is our own method. It extends fragmentation gradient descent (Weng et al., USENIX ATC 2023), which asks for each
request of the mix alone whether it can run now, in three ways. (1) A worker counts by what a stream of requests of the
mix will take of it in the end, limited by holes, cores and memory together (`fill_tables`): a worker with 8 idle
accelerators and cores for 2 counts as 2. (2) A hole also counts by the devices that it saves, from the dual prices of
the cutting-stock problem of the mix's shares (Gilmore and Gomory 1961). So small shares go into holes that nothing else
can use. (3) Idle accelerators count more together, as far as the mix asks for several. The score is rounded down, so
near ties go to the first worker and the last workers stay whole.

It refuses no request and moves no task.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hetero_airflow.matching.packing.demand import (
    DeviceDemand,
    Floats,
    FreeCapacity,
    RequestMix,
    accelerator_positions,
    device_demand,
    has_suitable_devices,
)
from hetero_airflow.matching.packing.fill_tables import GRAIN_MILLI, HOST_STEPS, FillTables, fill_tables
from hetero_airflow.matching.packing.scorer import ROUNDING_TOLERANCE
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.units import MILLI_PER_DEVICE

ROUNDED_TO = 50
"""Thousandths of an accelerator. Without rounding, openb's mixes fill up to 0.4 points more in the end. But mixes with
many models fill up to 3 points less at 100 % demand, because requests for 8 devices find no whole worker."""


class ExpectedFillMeasure:
    """A measure by what requests of this mix will still take; see `PackingMeasure`.

    :param prices: [1001] the value of a free part of an accelerator in devices, 0 to 1; see (2) above
    """

    name = "expected_fill"

    def __init__(self, mix: RequestMix, prices: Sequence[float]) -> None:
        self._mix = mix
        self._prices = MILLI_PER_DEVICE * np.array(prices)
        self._tables: dict[Shape, FillTables] = {}

    def for_shape(self, shape: Shape, demand: DeviceDemand) -> "ExpectedFillOnShape":
        """The measure for a demand on workers of one shape."""
        tables = self._tables.get(shape)
        if tables is None:
            tables = self._tables[shape] = self._make_tables(shape)
        return ExpectedFillOnShape(demand, tables, self._prices, *_capacity(shape))

    def _make_tables(self, shape: Shape) -> FillTables:
        all_demands = [(device_demand(alternative), part, alternative) for alternative, part in self._mix]
        demands = [(demand, part, alternative) for demand, part, alternative in all_demands if demand.share_milli]
        total = sum(part for _, part, _ in demands) or 1.0
        suitable = [(d, part / total) for d, part, alternative in demands if has_suitable_devices(shape, alternative)]
        return fill_tables(suitable, len(accelerator_positions(shape)), *_capacity(shape))


class _Placed(NamedTuple):
    """The accelerators of a worker after a placement on them."""

    fill: float
    """The expected fill without limits of cores and memory."""
    value_added: float
    """The value of the parts, beyond the fill."""
    row: int
    """Of the tables by cores and by memory."""
    part: int
    """The free part that was taken; 1000 for whole devices, 0 for none."""


class ExpectedFillOnShape:
    """The score of a demand on workers of one shape."""

    def __init__(
        self, demand: DeviceDemand, tables: FillTables, prices: Floats, cores_milli: int, memory_bytes: int
    ) -> None:
        self._demand = demand
        self._tables = tables
        self._prices = prices
        self._per_core = HOST_STEPS / cores_milli
        self._per_byte = HOST_STEPS / memory_bytes
        fill_of_one = float(tables.idle[1]) if len(tables.idle) > 1 else 0.0
        self._per_idle = 1 / fill_of_one if fill_of_one else 0.0
        self._placed = lru_cache(maxsize=None)(self._best)

    def score(self, free: FreeCapacity) -> float:
        """See `ShapeMeasure`."""
        cores, memory = free.cores_milli - self._demand.cores_milli, free.memory_bytes - self._demand.memory_bytes
        before, after = self._placed(free.parts)
        if after is None or cores < 0 or memory < 0:
            return -math.inf
        lost = self._value(after, cores, memory) - self._value(before, free.cores_milli, free.memory_bytes)
        return float(math.floor(lost / ROUNDED_TO + ROUNDING_TOLERANCE))

    def part(self, free: FreeCapacity) -> int:
        """See `ShapeMeasure`."""
        placed = self._placed(free.parts)[1]
        return 0 if placed is None else placed.part

    def _value(self, placed: _Placed, cores_milli: int, memory_bytes: int) -> float:
        by_cores = _interpolated(self._tables.by_cores[placed.row], cores_milli * self._per_core)
        by_memory = _interpolated(self._tables.by_memory[placed.row], memory_bytes * self._per_byte)
        return placed.fill * min(by_cores, by_memory) + placed.value_added

    def _best(self, parts: tuple[int, ...]) -> tuple[_Placed, _Placed | None]:
        """The accelerators as they are, and after the best placement of the demand; None if it does not fit."""
        options = (self._after(parts, *option) for option in _options(parts, self._demand))
        best = max(options, key=lambda placed: (placed.fill + placed.value_added, -placed.part), default=None)
        return self._after(parts, 0, 0, 0), best

    def _after(self, parts: tuple[int, ...], part: int, left: int, times: int) -> _Placed:
        tables, is_idle = self._tables, part == MILLI_PER_DEVICE
        used = sum(float(tables.hole[p]) for p in parts if p < MILLI_PER_DEVICE)
        holes = used + times * float(tables.hole[left] - (0.0 if is_idle else tables.hole[part]))
        idle = parts.count(MILLI_PER_DEVICE) - times * is_idle
        value_added = float(self._prices[list(parts)].sum()) + times * float(self._prices[left] - self._prices[part])
        grain = round((holes * self._per_idle + idle) * (MILLI_PER_DEVICE / GRAIN_MILLI))
        return _Placed(
            holes + float(tables.idle[idle]),
            value_added + float(tables.protection[idle]),
            min(grain, len(tables.by_cores) - 1),
            part,
        )


def _options(parts: tuple[int, ...], demand: DeviceDemand) -> Iterator[tuple[int, int, int]]:
    """The options to place a demand on accelerators with these free parts: the part, what is left of it, how often.

    >>> list(_options((300, 300, 1000), DeviceDemand(300, 1, 0, 0)))
    [(300, 0, 1), (1000, 700, 1)]
    >>> list(_options((300, 300, 1000), DeviceDemand(1000, 2, 0, 0))), list(_options((), DeviceDemand(0, 0, 1000, 0)))
    ([], [(0, 0, 0)])
    """
    if not demand.share_milli:
        yield 0, 0, 0
    elif demand.share_milli < MILLI_PER_DEVICE:
        yield from ((part, part - demand.share_milli, 1) for part in sorted(set(parts)) if part >= demand.share_milli)
    elif parts.count(MILLI_PER_DEVICE) >= demand.devices:
        yield MILLI_PER_DEVICE, 0, demand.devices


def _interpolated(row: Floats, at: float) -> float:
    step = min(int(at), HOST_STEPS - 1)
    lower = float(row[step])
    return lower + (float(row[step + 1]) - lower) * (at - step)


def _capacity(shape: Shape) -> tuple[int, int]:
    """Thousandths of cores and bytes of an idle worker; at least 1 each, because they are divisors."""
    cores_milli, memory_bytes = (0, 0) if shape.cpu is None else shape.capacity[shape.cpu]
    return max(cores_milli, 1), max(memory_bytes, 1)
