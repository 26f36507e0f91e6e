"""A placement by a valuation: the worker that loses least of its value, and on it the device that a share suits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hetero_airflow.matching.feasibility import Feasibility, device_count
from hetero_airflow.matching.linked_devices import closest_devices
from hetero_airflow.matching.packing.demand import (
    DeviceDemands,
    Floats,
    FreeCapacity,
    device_demand,
    free_capacity,
    free_share_milli,
)
from hetero_airflow.matching.scoring import Allocation
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative

ROUNDING_TOLERANCE = 1e-9
"""Added before a score is rounded down, so that a rounding error does not make an unchanged worker a lower score."""


class ShapeMeasure(Protocol):
    """What workers of one shape are worth."""

    def scores(self, stock: FreeCapacity) -> Floats:
        """The score of placing each of the asks on a worker with this stock, −∞ where it does not fit."""
        ...

    def part(self, stock: FreeCapacity, ask: int) -> int:
        """The free part of an accelerator that a share is taken of; of others it means nothing."""
        ...


class PackingMeasure(Protocol):
    """What workers are worth, by what is left of them. Pure; what it remembers changes no answer."""

    name: str

    def for_shape(self, shape: Shape, asks: DeviceDemands) -> ShapeMeasure:
        """The same for workers of one shape, and for these asks."""
        ...


class PackingScorer:
    """A `Placement` that scores by a valuation; real devices before simulated ones.

    Devices of a worker are told apart by what is free of them alone: on a worker with several models, a share
    goes to the part that suits it of those devices that it may use.
    """

    uses_history = False

    def __init__(self, valuation: PackingMeasure) -> None:
        self._valuation = valuation
        self._on: dict[tuple[Shape, str], ShapeMeasure] = {}

    def choose(
        self, alternative: Alternative, shape: Shape, held: Sequence[Allocation], free: Sequence[int]
    ) -> tuple[int, ...]:
        """A share on the part that the valuation says, else the smallest that is enough; whole ones best joined."""
        preferred = sorted(free, key=lambda p: (shape.devices[p].simulated, p))
        if alternative.share is None:
            return closest_devices(shape, preferred, device_count(alternative))
        part = self._shape_measure(alternative, shape).part(free_capacity(shape, held), 0)
        return (
            min(
                preferred,
                key=lambda p: (
                    shape.devices[p].simulated,
                    free_share_milli(held, p) != part,
                    free_share_milli(held, p),
                    p,
                ),
            ),
        )

    def terms(
        self,
        alternative: Alternative,
        shape: Shape,
        held: Sequence[Allocation],
        feasibility: Feasibility,
        chosen: Sequence[int],
    ) -> Mapping[str, float]:
        """A million for real devices, and the valuation's score."""
        score = float(self._shape_measure(alternative, shape).scores(free_capacity(shape, held))[0])
        real = all(not shape.devices[p].simulated for p in chosen)
        return {"real": 1e6 if real else 0.0, self._valuation.name: score}

    def _shape_measure(self, alternative: Alternative, shape: Shape) -> ShapeMeasure:
        on = self._on.get((shape, alternative.key))
        if on is None:
            on = self._on[shape, alternative.key] = self._valuation.for_shape(
                shape, DeviceDemands.of([device_demand(alternative)])
            )
        return on
