"""Many demands at once, as arrays, for measures that rate workers for all alternatives of a `Scoreboard` together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hetero_airflow.matching.packing.demand import DeviceDemand, Floats, FreeCapacity
from hetero_airflow.matching.packing.scorer import PackingMeasure
from hetero_airflow.matching.shapes import Shape

Numbers = NDArray[np.int64]

NO_DEMAND = DeviceDemand(0, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class DeviceDemands:
    """Many demands as arrays. The last one is an empty demand, which gives the value of the worker as it is."""

    all: tuple[DeviceDemand, ...]

    @classmethod
    def of(cls, demands: Iterable[DeviceDemand]) -> "DeviceDemands":
        """These demands, and the empty one."""
        return cls((*demands, NO_DEMAND))

    @cached_property
    def variants(self) -> tuple[tuple[int, int], ...]:
        """The different (share_milli, devices) pairs, ascending: the part of a demand that concerns accelerators."""
        return tuple(sorted({(demand.share_milli, demand.devices) for demand in self.all}))

    @cached_property
    def variant(self) -> Numbers:
        """The number of each demand's variant."""
        number = {variant: index for index, variant in enumerate(self.variants)}
        return np.array([number[demand.share_milli, demand.devices] for demand in self.all])

    @cached_property
    def cores_milli(self) -> Numbers:
        """The cores of each demand."""
        return np.array([demand.cores_milli for demand in self.all])

    @cached_property
    def memory_bytes(self) -> Numbers:
        """The host memory of each demand."""
        return np.array([demand.memory_bytes for demand in self.all])


class MeasureOfDemands(Protocol):
    """Rates workers of one shape for many demands, by their free capacity."""

    def scores(self, free: FreeCapacity) -> Floats:
        """The score of each demand on a worker with this free capacity, −∞ where it does not fit."""

    def part(self, free: FreeCapacity, demand: int) -> int:
        """The free part of an accelerator from which a share is taken; without meaning for other demands."""


class ArrayMeasure:
    """A `PackingMeasure` that is computed for many demands at once."""

    name: str

    def for_demands(self, shape: Shape, demands: DeviceDemands) -> MeasureOfDemands:
        """The measure for workers of one shape and for these demands."""
        raise NotImplementedError

    def for_shape(self, shape: Shape, demand: DeviceDemand) -> "OneOfDemands":
        """See `PackingMeasure.for_shape`."""
        return OneOfDemands(self.for_demands(shape, DeviceDemands.of([demand])))


@dataclass(frozen=True, slots=True)
class OneOfDemands:
    """A `ShapeMeasure` of the first of the demands."""

    of_all: MeasureOfDemands

    def score(self, free: FreeCapacity) -> float:
        """See `ShapeMeasure.score`."""
        return float(self.of_all.scores(free)[0])

    def part(self, free: FreeCapacity) -> int:
        """See `ShapeMeasure.part`."""
        return self.of_all.part(free, 0)


class EachDemand:
    """Any measure for many demands, one after the other."""

    def __init__(self, measure: PackingMeasure, shape: Shape, demands: Sequence[DeviceDemand]) -> None:
        self._measures = [measure.for_shape(shape, demand) for demand in demands]

    def scores(self, free: FreeCapacity) -> Floats:
        """See `MeasureOfDemands.scores`."""
        return np.array([measure.score(free) for measure in self._measures])

    def part(self, free: FreeCapacity, demand: int) -> int:
        """See `MeasureOfDemands.part`."""
        return self._measures[demand].part(free)


def for_demands(measure: PackingMeasure, shape: Shape, demands: DeviceDemands) -> MeasureOfDemands:
    """The measure for workers of one shape and for these demands."""
    if isinstance(measure, ArrayMeasure):
        return measure.for_demands(shape, demands)
    return EachDemand(measure, shape, demands.all[:-1])
