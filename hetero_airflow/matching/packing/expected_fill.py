"""Expected fill: place where what a worker will still sell of its accelerators falls least.

Ours; it goes beyond fragmentation gradient descent (`fragmentation`), which asks of each request of the mix alone
whether it could run now, in three ways. (1) What counts of a worker is what a stream of requests of the mix will
take of it in the end, holes, cores and memory together (`fill_tables`): a worker with 8 idle accelerators and cores
for 2 is worth 2. (2) A hole is also worth the devices that it saves, by the dual prices of the cutting-stock problem
of the mix's shares (Gilmore and Gomory 1961): small shares go into holes that nothing else can use. (3) Idle
accelerators are worth more together, as far as the mix asks for several. The score is rounded down, so that
near ties go to the first worker and the last ones stay whole.

Nothing is declined and nothing moved.
"""

from __future__ import annotations

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
from hetero_airflow.matching.packing.fill_tables import BESIDE_STEPS, GRAIN_MILLI, FillTables, fill_tables
from hetero_airflow.matching.packing.scorer import ROUNDING_TOLERANCE
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.units import MILLI_PER_DEVICE

ROUNDED_TO = 50
"""Thousandths of an accelerator. Without, openb's mixes fill up to 0.4 points more in the end, but those with many
models up to 3 points less at 100 % demand, since requests for 8 devices find no whole worker any more."""


class ExpectedFillMeasure:
    """A valuation by what requests of this mix will still take; see `valued.PackingMeasure`.

    :param prices: [1001] what a free part of an accelerator is worth in devices, 0 to 1; see above, (2)
    """

    name = "expected_fill"

    def __init__(self, mix: RequestMix, prices: Sequence[float]) -> None:
        self._mix = mix
        self._prices = MILLI_PER_DEVICE * np.array(prices)
        self._tables: dict[Shape, FillTables] = {}

    def for_shape(self, shape: Shape, asks: DeviceDemands) -> ExpectedFillOnShape:
        """The valuation of workers of one shape."""
        tables = self._tables.get(shape)
        if tables is None:
            tables = self._tables[shape] = self._make_tables(shape)
        return ExpectedFillOnShape(asks, tables, self._prices, *_capacity(shape))

    def _make_tables(self, shape: Shape) -> FillTables:
        wanted = [(device_demand(alternative), part, alternative) for alternative, part in self._mix]
        total = sum(part for ask, part, _ in wanted if ask.share_milli) or 1.0
        here = [
            (ask, part / total) for ask, part, one in wanted if ask.share_milli and has_suitable_devices(shape, one)
        ]
        return fill_tables(here, len(accelerator_positions(shape)), *_capacity(shape))


class ExpectedFillOnShape:
    """Scores of asks on workers of one shape."""

    def __init__(
        self, asks: DeviceDemands, tables: FillTables, prices: Floats, cores_milli: int, memory_bytes: int
    ) -> None:
        self._asks = asks
        self._tables = tables
        self._prices = prices
        self._per_core = BESIDE_STEPS / cores_milli
        self._per_byte = BESIDE_STEPS / memory_bytes
        one = float(tables.idle[1]) if len(tables.idle) > 1 else 0.0
        self._per_idle = 1 / one if one else 0.0
        self._cores, self._memory = tables.by_cores.ravel(), tables.by_memory.ravel()
        self._known: dict[tuple[int, ...], tuple[Floats, Floats, Numbers, Numbers]] = {}

    def scores(self, stock: FreeCapacity) -> Floats:
        """The score of each ask, −∞ where it does not fit."""
        sold, worth, start, _ = self._tables_of(stock.parts)
        cores, memory = stock.cores_milli - self._asks.cores_milli, stock.memory_bytes - self._asks.memory_bytes
        part = np.minimum(
            _interpolated(self._cores, start, np.maximum(cores, 0) * self._per_core),
            _interpolated(self._memory, start, np.maximum(memory, 0) * self._per_byte),
        )
        value = sold * part + worth
        score: Floats = np.floor((value - value[-1]) / ROUNDED_TO + ROUNDING_TOLERANCE)
        np.putmask(score, (cores < 0) | (memory < 0), -np.inf)
        return score[:-1]

    def part(self, stock: FreeCapacity, ask: int) -> int:
        """The free part that an ask takes, if it is a share."""
        return int(self._tables_of(stock.parts)[3][ask])

    def _tables_of(self, parts: tuple[int, ...]) -> tuple[Floats, Floats, Numbers, Numbers]:
        known = self._known.get(parts)
        if known is None:
            known = self._known[parts] = self._after(parts)
        return known

    def _after(self, parts: tuple[int, ...]) -> tuple[Floats, Floats, Numbers, Numbers]:
        """Of each ask: what would be sold but for cores and memory, what its parts are worth besides, where its row
        of `beside_table` starts, and the part that is taken; a worth of −∞ where the parts do not fit."""
        tables, ways = self._tables, variant_options(parts, self._asks.variants)
        _, part, left, times = ways
        begun = sum(float(tables.hole[p]) for p in parts if p < MILLI_PER_DEVICE)
        is_idle = part == MILLI_PER_DEVICE
        holes = begun + times * (tables.hole[left] - np.where(is_idle, 0.0, tables.hole[part]))
        idle = parts.count(MILLI_PER_DEVICE) - times * is_idle
        sold = holes + tables.idle[idle]
        worth = float(self._prices[list(parts)].sum()) + times * (self._prices[left] - self._prices[part])
        worth += tables.protection[idle]
        grain = np.rint((holes * self._per_idle + idle) * (MILLI_PER_DEVICE / GRAIN_MILLI)).astype(np.int64)
        start = np.minimum(grain, len(tables.by_cores) - 1) * (BESIDE_STEPS + 1)
        best = np.lexsort((part, -(sold + worth), ways.variant))[ways.first]
        fitting = ways.variant[best]
        result = []
        for column, absent in ((sold, 0.0), (worth, -np.inf), (start, 0), (part, 0)):
            full = np.full(len(self._asks.variants), absent, dtype=column.dtype)
            full[fitting] = column[best]
            result.append(full[self._asks.variant])
        return result[0], result[1], result[2], result[3]


def _interpolated(table: Floats, start: Numbers, at: Floats) -> Floats:
    step = np.minimum(at.astype(np.int64), BESIDE_STEPS - 1)
    lower = table[start + step]
    return lower + (table[start + step + 1] - lower) * (at - step)


def _capacity(shape: Shape) -> tuple[int, int]:
    """Thousandths of cores and bytes of an idle worker; at least 1 of each, to be divided by."""
    cores_milli, memory_bytes = (0, 0) if shape.cpu is None else shape.capacity[shape.cpu]
    return max(cores_milli, 1), max(memory_bytes, 1)
