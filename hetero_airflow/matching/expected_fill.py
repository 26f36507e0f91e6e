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

from hetero_airflow.matching.demand import Asks, Floats, Mix, Numbers, Stock, accelerators, accepts, ask_of
from hetero_airflow.matching.fill_tables import BESIDE_STEPS, GRAIN_MILLI, FillTables, fill_tables
from hetero_airflow.matching.fragmentation import outcomes
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.units import MILLI_PER_DEVICE

ROUNDED_TO = 50
"""Thousandths of an accelerator. Without, openb's mixes fill up to 0.4 points more in the end, but those with many
models up to 3 points less at 100 % demand, since requests for 8 devices find no whole worker any more."""


class ExpectedFill:
    """A valuation by what requests of this mix will still take; see `valued.Valuation`.

    :param prices: [1001] what a free part of an accelerator is worth in devices, 0 to 1; see above, (2)
    """

    name = "expected_fill"

    def __init__(self, mix: Mix, prices: Sequence[float]) -> None:
        self._mix = mix
        self._prices = MILLI_PER_DEVICE * np.array(prices)
        self._tables: dict[Shape, FillTables] = {}

    def on(self, shape: Shape, asks: Asks) -> ExpectedFillOn:
        """The valuation of workers of one shape."""
        tables = self._tables.get(shape)
        if tables is None:
            tables = self._tables[shape] = self._make_tables(shape)
        return ExpectedFillOn(asks, tables, self._prices, *_capacity(shape))

    def _make_tables(self, shape: Shape) -> FillTables:
        wanted = [(ask_of(alternative), part, alternative) for alternative, part in self._mix]
        total = sum(part for ask, part, _ in wanted if ask.milli) or 1.0
        here = [(ask, part / total) for ask, part, one in wanted if ask.milli and accepts(shape, one)]
        return fill_tables(here, len(accelerators(shape)), *_capacity(shape))


class ExpectedFillOn:
    """Scores of asks on workers of one shape."""

    def __init__(self, asks: Asks, tables: FillTables, prices: Floats, cores_milli: int, memory_bytes: int) -> None:
        self._asks = asks
        self._tables = tables
        self._prices = prices
        self._per_core = BESIDE_STEPS / cores_milli
        self._per_byte = BESIDE_STEPS / memory_bytes
        self._cores, self._memory = tables.by_cores.ravel(), tables.by_memory.ravel()
        self._known: dict[tuple[int, ...], tuple[Floats, Floats, Numbers, Numbers]] = {}

    def row(self, stock: Stock) -> tuple[Floats, Numbers]:
        """The score of each ask, −∞ where it does not fit, and the part that a share is put on."""
        asks = self._asks
        known = self._known.get(stock.parts)
        if known is None:
            known = self._known[stock.parts] = self._after(stock.parts)
        sold, worth, start, taken = known
        cores, memory = stock.cores_milli - asks.cores_milli, stock.memory_bytes - asks.memory_bytes
        part = np.minimum(
            _interpolated(self._cores, start, np.maximum(cores, 0) * self._per_core),
            _interpolated(self._memory, start, np.maximum(memory, 0) * self._per_byte),
        )
        value = sold * part + worth
        score = np.floor((value - value[-1]) / ROUNDED_TO)
        score[(cores < 0) | (memory < 0)] = -np.inf
        return score[:-1], taken[:-1]

    def _after(self, parts: tuple[int, ...]) -> tuple[Floats, Floats, Numbers, Numbers]:
        """Of each ask: what would be sold but for cores and memory, what its parts are worth besides, where its row
        of `beside_table` starts, and the part that is taken; a worth of −∞ where the parts do not fit."""
        rows = []
        for milli, count in self._asks.variants:
            ways = [(*self._value(left), taken) for taken, left in outcomes(parts, milli, count)]
            rows.append(max(ways, key=lambda way: (way[0] + way[1], -way[3])) if ways else (0.0, -np.inf, 0, 0))
        sold, worth, start, taken = (np.array(column)[self._asks.variant] for column in zip(*rows, strict=True))
        return sold, worth, start, taken

    def _value(self, parts: tuple[int, ...]) -> tuple[float, float, int]:
        tables, idle = self._tables, parts.count(MILLI_PER_DEVICE)
        begun = float(tables.hole[list(parts[: len(parts) - idle])].sum())
        one = float(tables.idle[1]) if len(tables.idle) > 1 else 0.0
        whole = (begun / one if one else 0.0) + idle
        grain = min(round(whole * MILLI_PER_DEVICE / GRAIN_MILLI), len(tables.by_cores) - 1)
        worth = float(self._prices[list(parts)].sum() + tables.protection[idle])
        return begun + float(tables.idle[idle]), worth, grain * (BESIDE_STEPS + 1)


def _interpolated(table: Floats, start: Numbers, at: Floats) -> Floats:
    step = np.minimum(at.astype(np.int64), BESIDE_STEPS - 1)
    lower = table[start + step]
    return lower + (table[start + step + 1] - lower) * (at - step)


def _capacity(shape: Shape) -> tuple[int, int]:
    """Thousandths of cores and bytes of an idle worker; at least 1 of each, to be divided by."""
    cores_milli, memory_bytes = (0, 0) if shape.cpu is None else shape.capacity[shape.cpu]
    return max(cores_milli, 1), max(memory_bytes, 1)
