"""Dot product: a placement by amounts alone, the baseline of placement by fragmentation."""

from __future__ import annotations

from hetero_airflow.matching.packing.best_fit import BestFitOnShape, LargestCapacity
from hetero_airflow.matching.packing.demand import DeviceDemands, Floats, FreeCapacity
from hetero_airflow.matching.shapes import Shape


class DotProductMeasure:
    """The least product of demand and free amounts.

    Tetris (Grandl et al., SIGCOMM 2014) with the sign of the openb experiments: it packs.
    """

    name = "dot_product"

    def __init__(self, largest: LargestCapacity) -> None:
        self._largest = largest

    def for_shape(self, shape: Shape, demands: DeviceDemands) -> _DotProductOnShape:
        """The same for all shapes."""
        return _DotProductOnShape(demands, self._largest)


class _DotProductOnShape(BestFitOnShape):
    def _cost(self, free: FreeCapacity) -> Floats:
        cores = free.cores_milli * self._per_core * 2 * self._cores
        return cores + sum(free.parts) * self._per_part * 2 * self._amount * self._per_part
