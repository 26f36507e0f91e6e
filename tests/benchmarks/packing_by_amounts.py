"""Placement by amounts alone, without a request mix: the baselines of placement by fragmentation.

A worker is two numbers, free cores and free accelerators, each divided by that of the largest worker. The score is
rounded to hundredths, as in https://github.com/hkust-adsl/kubernetes-scheduler-simulator; ties go to the first worker.
A share goes to the smallest part that is large enough.
"""

from typing import NamedTuple

import numpy as np

from hetero_airflow.matching.packing.demand import Floats, FreeCapacity
from hetero_airflow.matching.packing.scorer import ROUNDING_TOLERANCE
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.units import MILLI_PER_DEVICE
from tests.benchmarks.demand_arrays import ArrayMeasure, DeviceDemands


class LargestCapacity(NamedTuple):
    """Thousandths of the cores and of the accelerators of the largest workers."""

    cores_milli: int
    accelerators_milli: int


class BestFitMeasure(ArrayMeasure):
    """The least rest; cores and accelerators count alike. See `PackingMeasure`."""

    name = "best_fit"

    def __init__(self, largest: LargestCapacity) -> None:
        self._largest = largest

    def for_demands(self, shape: Shape, demands: DeviceDemands) -> "BestFitOnShape":
        """The same for all shapes."""
        return BestFitOnShape(demands, self._largest)


class BestFitOnShape:
    """Scores of demands by the rest that they leave."""

    def __init__(self, demands: DeviceDemands, largest: LargestCapacity) -> None:
        self._demands = demands
        self._per_core, self._per_part = (0.5 / max(amount, 1) for amount in largest)
        self._cores = demands.cores_milli * self._per_core
        self._amount = np.array([demand.share_milli * demand.devices for demand in demands.all])
        self._milli = np.array([demand.share_milli for demand in demands.all])
        self._devices = np.array([demand.devices for demand in demands.all])

    def scores(self, free: FreeCapacity) -> Floats:
        """The score of each demand, −∞ where it does not fit."""
        score: Floats = np.floor(100 * (1 - self._cost(free)) + ROUNDING_TOLERANCE)
        parts = np.array((0, *free.parts))
        enough = (parts >= np.maximum(self._milli, 1)[:, None]).sum(axis=1)
        demands = self._demands
        short = (demands.cores_milli > free.cores_milli) | (demands.memory_bytes > free.memory_bytes)
        score[short | (enough < self._devices)] = -np.inf
        return score[:-1]

    def part(self, free: FreeCapacity, demand: int) -> int:
        """The smallest part that is large enough."""
        return next((part for part in free.parts if part >= self._milli[demand]), MILLI_PER_DEVICE)

    def _cost(self, free: FreeCapacity) -> Floats:
        cores = free.cores_milli * self._per_core - self._cores
        return cores + (sum(free.parts) - self._amount) * self._per_part


class DotProductMeasure(ArrayMeasure):
    """The least product of demand and free amounts.

    Tetris (Grandl et al., SIGCOMM 2014) with the sign of the openb experiments: it packs.
    """

    name = "dot_product"

    def __init__(self, largest: LargestCapacity) -> None:
        self._largest = largest

    def for_demands(self, shape: Shape, demands: DeviceDemands) -> "_DotProductOnShape":
        """The same for all shapes."""
        return _DotProductOnShape(demands, self._largest)


class _DotProductOnShape(BestFitOnShape):
    def _cost(self, free: FreeCapacity) -> Floats:
        cores = free.cores_milli * self._per_core * 2 * self._cores
        return cores + sum(free.parts) * self._per_part * 2 * self._amount * self._per_part
