"""The fits that fragmentation-aware placement is compared with: they look at amounts alone, at no mix.

Both see a worker as two numbers, free cores and free accelerators, each by that of the largest worker, and round
to hundredths, as https://github.com/hkust-adsl/kubernetes-scheduler-simulator does; ties go to the first worker.
A share goes to the smallest part that is enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_airflow.matching.packing.demand import DeviceDemands, Floats, FreeCapacity
from hetero_airflow.matching.packing.scorer import ROUNDING_TOLERANCE
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.units import MILLI_PER_DEVICE


class LargestCapacity(NamedTuple):
    """Of the cores and of the accelerators of the largest workers, thousandths."""

    cores_milli: int
    accelerators_milli: int


class BestFitMeasure:
    """The least left over, cores and accelerators counting alike; see `valued.PackingMeasure`."""

    name = "best_fit"

    def __init__(self, largest: LargestCapacity) -> None:
        self._largest = largest

    def for_shape(self, shape: Shape, asks: DeviceDemands) -> _BestFitOnShape:
        """The same for all shapes."""
        return _BestFitOnShape(asks, self._largest)


class DotProductMeasure:
    """The least product of what is asked and what is free, as a worker with much of what is asked little of has.

    Tetris (Grandl et al., SIGCOMM 2014) with the sign that the openb experiments give it: it packs.
    """

    name = "dot_product"

    def __init__(self, largest: LargestCapacity) -> None:
        self._largest = largest

    def for_shape(self, shape: Shape, asks: DeviceDemands) -> _DotProductOnShape:
        """The same for all shapes."""
        return _DotProductOnShape(asks, self._largest)


class _BestFitOnShape:
    def __init__(self, asks: DeviceDemands, largest: LargestCapacity) -> None:
        self._asks = asks
        self._per_core, self._per_part = (0.5 / max(amount, 1) for amount in largest)
        self._cores = asks.cores_milli * self._per_core
        self._amount = np.array([ask.share_milli * ask.devices for ask in asks.all])
        self._milli = np.array([ask.share_milli for ask in asks.all])
        self._devices = np.array([ask.devices for ask in asks.all])

    def scores(self, stock: FreeCapacity) -> Floats:
        """The score of each ask, −∞ where it does not fit."""
        score: Floats = np.floor(100 * (1 - self._cost(stock)) + ROUNDING_TOLERANCE)
        parts = np.array((0, *stock.parts))
        enough = (parts >= np.maximum(self._milli, 1)[:, None]).sum(axis=1)
        asks = self._asks
        short = (asks.cores_milli > stock.cores_milli) | (asks.memory_bytes > stock.memory_bytes)
        score[short | (enough < self._devices)] = -np.inf
        return score[:-1]

    def part(self, stock: FreeCapacity, ask: int) -> int:
        """The smallest that is enough."""
        return next((part for part in stock.parts if part >= self._milli[ask]), MILLI_PER_DEVICE)

    def _cost(self, stock: FreeCapacity) -> Floats:
        cores = stock.cores_milli * self._per_core - self._cores
        return cores + (sum(stock.parts) - self._amount) * self._per_part


class _DotProductOnShape(_BestFitOnShape):
    def _cost(self, stock: FreeCapacity) -> Floats:
        cores = stock.cores_milli * self._per_core * 2 * self._cores
        return cores + sum(stock.parts) * self._per_part * 2 * self._amount * self._per_part
