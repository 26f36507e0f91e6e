"""The packing scorer: it prefers the worker that loses least value by a measure, and the best free part for a share."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from hetero_airflow.matching.feasibility import Feasibility, device_count
from hetero_airflow.matching.linked_devices import closest_devices
from hetero_airflow.matching.packing.demand import (
    DeviceDemand,
    FreeCapacity,
    device_demand,
    free_capacity,
    free_share_milli,
)
from hetero_airflow.matching.scoring import Allocations, PlacementScorer
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative

ROUNDING_TOLERANCE = 1e-9
"""Added before a score is rounded down, so that a rounding error does not give an unchanged worker a lower score."""


class ShapeMeasure(Protocol):
    """Rates workers of one shape for one demand, by their free capacity."""

    def score(self, free: FreeCapacity) -> float:
        """The score of the demand on a worker with this free capacity, −∞ if it does not fit."""

    def part(self, free: FreeCapacity) -> int:
        """The free part of an accelerator from which a share is taken; without meaning for other demands."""


class PackingMeasure(Protocol):
    """Rates workers by their free capacity. Pure; what it remembers never changes an answer."""

    name: str

    def for_shape(self, shape: Shape, demand: DeviceDemand) -> ShapeMeasure:
        """The measure for workers of one shape and for this demand."""


class PackingScorer:
    """A `PlacementScorer` that scores by a measure; real devices come before simulated ones.

    It tells the devices of a worker apart only by their free amounts: on a worker with several models, a share goes to
    the best part of those devices that it may use.

    :param ties: the scorer that chooses between placements of the same score; None: the first worker wins. Its terms
        sum to less than 100, and the scores of the measure are whole numbers.
    """

    uses_history = False

    def __init__(self, measure: PackingMeasure, ties: PlacementScorer | None = None) -> None:
        self._measure = measure
        self._ties = ties
        self._by_shape: dict[tuple[Shape, str], ShapeMeasure] = {}

    def choose(self, alternative: Alternative, shape: Shape, held: Allocations, free: Sequence[int]) -> tuple[int, ...]:
        """For a share, the part that the measure names, else the smallest one; for whole devices, the best linked."""
        preferred = sorted(free, key=lambda p: (shape.devices[p].simulated, p))
        if alternative.share is None:
            return closest_devices(shape, preferred, device_count(alternative))
        part = self._shape_measure(alternative, shape).part(free_capacity(shape, held))

        def rank(position: int) -> tuple[bool, bool, int, int]:
            free_milli = free_share_milli(held, position)
            return shape.devices[position].simulated, free_milli != part, free_milli, position

        return (min(preferred, key=rank),)

    def terms(
        self, alternative: Alternative, shape: Shape, held: Allocations, feasibility: Feasibility, chosen: Sequence[int]
    ) -> Mapping[str, float]:
        """A million for real devices, the score of the measure, and a hundredth of each term that decides ties."""
        score = self._shape_measure(alternative, shape).score(free_capacity(shape, held))
        real = all(not shape.devices[p].simulated for p in chosen)
        terms = {"real": 1e6 if real else 0.0, self._measure.name: score}
        if self._ties is not None:
            ties = self._ties.terms(alternative, shape, held, feasibility, chosen)
            terms |= {name: term / 100 for name, term in ties.items() if name != "real"}
        return terms

    def _shape_measure(self, alternative: Alternative, shape: Shape) -> ShapeMeasure:
        key = (shape, alternative.key)
        measure = self._by_shape.get(key)
        if measure is None:
            measure = self._by_shape[key] = self._measure.for_shape(shape, device_demand(alternative))
        return measure
