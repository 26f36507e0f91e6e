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

from collections.abc import Sequence

import numpy as np

from hetero_airflow.matching.packing.demand import (
    DeviceDemands,
    Floats,
    FreeCapacity,
    Numbers,
    RequestMix,
    accelerator_positions,
    device_demand,
    has_suitable_devices,
    variant_options,
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

    def for_shape(self, shape: Shape, demands: DeviceDemands) -> "ExpectedFillOnShape":
        """The measure for workers of one shape."""
        tables = self._tables.get(shape)
        if tables is None:
            tables = self._tables[shape] = self._make_tables(shape)
        return ExpectedFillOnShape(demands, tables, self._prices, *_capacity(shape))

    def _make_tables(self, shape: Shape) -> FillTables:
        all_demands = [(device_demand(alternative), part, alternative) for alternative, part in self._mix]
        demands = [(demand, part, alternative) for demand, part, alternative in all_demands if demand.share_milli]
        total = sum(part for _, part, _ in demands) or 1.0
        suitable = [(d, part / total) for d, part, alternative in demands if has_suitable_devices(shape, alternative)]
        return fill_tables(suitable, len(accelerator_positions(shape)), *_capacity(shape))


class ExpectedFillOnShape:
    """Scores of demands on workers of one shape."""

    def __init__(
        self, demands: DeviceDemands, tables: FillTables, prices: Floats, cores_milli: int, memory_bytes: int
    ) -> None:
        self._demands = demands
        self._tables = tables
        self._prices = prices
        self._per_core = HOST_STEPS / cores_milli
        self._per_byte = HOST_STEPS / memory_bytes
        fill_of_one = float(tables.idle[1]) if len(tables.idle) > 1 else 0.0
        self._per_idle = 1 / fill_of_one if fill_of_one else 0.0
        self._cores, self._memory = tables.by_cores.ravel(), tables.by_memory.ravel()
        self._cached: dict[tuple[int, ...], tuple[Floats, Floats, Numbers, Numbers]] = {}

    def scores(self, free: FreeCapacity) -> Floats:
        """The score of each demand, −∞ where it does not fit."""
        fill, value_added, start, _ = self._tables_of(free.parts)
        cores, memory = free.cores_milli - self._demands.cores_milli, free.memory_bytes - self._demands.memory_bytes
        part = np.minimum(
            _interpolated(self._cores, start, np.maximum(cores, 0) * self._per_core),
            _interpolated(self._memory, start, np.maximum(memory, 0) * self._per_byte),
        )
        value = fill * part + value_added
        score: Floats = np.floor((value - value[-1]) / ROUNDED_TO + ROUNDING_TOLERANCE)
        np.putmask(score, (cores < 0) | (memory < 0), -np.inf)
        return score[:-1]

    def part(self, free: FreeCapacity, demand: int) -> int:
        """The free part that a demand takes, if it is a share."""
        return int(self._tables_of(free.parts)[3][demand])

    def _tables_of(self, parts: tuple[int, ...]) -> tuple[Floats, Floats, Numbers, Numbers]:
        cached = self._cached.get(parts)
        if cached is None:
            cached = self._cached[parts] = self._after(parts)
        return cached

    def _after(self, parts: tuple[int, ...]) -> tuple[Floats, Floats, Numbers, Numbers]:
        """For each demand: the expected fill without limits of cores and memory, the value of its parts, the start of
        its row in `host_table`, and the part that is taken. The value is −∞ where the parts do not fit."""
        tables, options = self._tables, variant_options(parts, self._demands.variants)
        _, part, free_after, times = options
        used = sum(float(tables.hole[p]) for p in parts if p < MILLI_PER_DEVICE)
        is_idle = part == MILLI_PER_DEVICE
        holes = used + times * (tables.hole[free_after] - np.where(is_idle, 0.0, tables.hole[part]))
        idle = parts.count(MILLI_PER_DEVICE) - times * is_idle
        fill = holes + tables.idle[idle]
        value_added = float(self._prices[list(parts)].sum()) + times * (self._prices[free_after] - self._prices[part])
        value_added += tables.protection[idle]
        grain = np.rint((holes * self._per_idle + idle) * (MILLI_PER_DEVICE / GRAIN_MILLI)).astype(np.int64)
        start = np.minimum(grain, len(tables.by_cores) - 1) * (HOST_STEPS + 1)
        best = np.lexsort((part, -(fill + value_added), options.variant))[options.first]
        fitting = options.variant[best]
        result = []
        for column, absent in ((fill, 0.0), (value_added, -np.inf), (start, 0), (part, 0)):
            full = np.full(len(self._demands.variants), absent, dtype=column.dtype)
            full[fitting] = column[best]
            result.append(full[self._demands.variant])
        return result[0], result[1], result[2], result[3]


def _interpolated(table: Floats, start: Numbers, at: Floats) -> Floats:
    step = np.minimum(at.astype(np.int64), HOST_STEPS - 1)
    lower = table[start + step]
    return lower + (table[start + step + 1] - lower) * (at - step)


def _capacity(shape: Shape) -> tuple[int, int]:
    """Thousandths of cores and bytes of an idle worker; at least 1 each, because they are divisors."""
    cores_milli, memory_bytes = (0, 0) if shape.cpu is None else shape.capacity[shape.cpu]
    return max(cores_milli, 1), max(memory_bytes, 1)
