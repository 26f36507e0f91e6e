"""Scoring: how good a possible placement is, and which devices of the worker it takes.

`PlacementScorer` is the protocol: it chooses among the free devices of a worker, and scores the choice as a number with
named terms. `TightFitScorer` is the default; `LeastRecentScorer` is for round robin.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hetero_airflow.matching.feasibility import Feasibility, device_count, device_need
from hetero_airflow.matching.linked_devices import closest_devices, joined_pairs
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.units import MILLI_PER_DEVICE


class Allocation(NamedTuple):
    """The leased amount of a device at one moment of a decision."""

    share_milli: int = 0
    memory_bytes: int = 0
    granted_s: float = 0.0
    """Unix time of the last grant; 0 if there is none or the scorer does not use it, so that more workers are alike."""


NO_ALLOCATION = Allocation()

Allocations = Sequence[Allocation]
"""The allocation of each position of a shape."""


class PlacementScorer(Protocol):
    """Chooses among a worker's free devices, and scores the choice. Pure; it sees positions, not ids."""

    uses_history: bool
    """Whether `Allocation.granted_s` must be set."""

    def choose(self, alternative: Alternative, shape: Shape, held: Allocations, free: Sequence[int]) -> tuple[int, ...]:
        """As many of the free positions as the alternative asks for; ties go to the lower position."""

    def terms(
        self, alternative: Alternative, shape: Shape, held: Allocations, feasibility: Feasibility, chosen: Sequence[int]
    ) -> Mapping[str, float]:
        """The terms of the score, weights included; the placement with the greatest sum wins."""


PACKED = "packed"

WEIGHTS: Mapping[str, float] = {
    "real": 20.0,
    "memory": 10.0,
    "links": 4.0,
    "shared": 4.0,
    "numa": 2.0,
    "no_accelerator": 2.0,
    PACKED: 0.4,
}
"""The weight of each term of `TightFitScorer`; each term is between 0 and 1.

A real device always wins over a simulated one. Twice the memory costs half a point, about as much as a full worker
gains for packing, so large devices stay free for large requests. A link is worth more than both.
"""


def own_terms(terms: Mapping[str, float]) -> dict[str, float]:
    """The terms that matter to the task itself: all but how full its worker becomes.

    >>> own_terms({"real": 20.0, "packed": 0.2})
    {'real': 20.0}
    """
    return {name: term for name, term in terms.items() if name != PACKED}


class TightFitScorer:
    """The tightest fit: small devices before large ones, shares on devices that are already shared, full workers first.

    This is best fit in the sense of multidimensional bin packing; see `WEIGHTS` for the trade-offs.
    """

    uses_history = False

    def choose(self, alternative: Alternative, shape: Shape, held: Allocations, free: Sequence[int]) -> tuple[int, ...]:
        """Real devices, then the most shared, then the smallest; of several sets, the one with the most links."""
        count = device_count(alternative)
        preferred = sorted(free, key=lambda p: (shape.devices[p].simulated, -held[p].share_milli, _memory(shape, p), p))
        real = [p for p in preferred if not shape.devices[p].simulated]
        return closest_devices(shape, real if count > 1 and len(real) >= count else preferred, count)

    def terms(
        self, alternative: Alternative, shape: Shape, held: Allocations, feasibility: Feasibility, chosen: Sequence[int]
    ) -> Mapping[str, float]:
        """See `WEIGHTS`; terms that do not apply to the alternative are absent."""
        terms = {"real": sum(not shape.devices[p].simulated for p in chosen) / len(chosen)}
        if alternative.kind == "cpu":
            cpu = chosen[0]
            cpu_milli = held[cpu].share_milli + device_need(alternative, shape.devices[cpu]).share_milli
            terms["no_accelerator"] = 1.0 if shape.accelerators == 0 else 0.0
            terms[PACKED] = cpu_milli / shape.capacity[cpu][0]
        else:
            gib = max(_memory(shape, p) for p in chosen) / 2**30
            terms["memory"] = 1 - math.log2(1 + gib) / 20
            if alternative.share is not None:
                terms["shared"] = (held[chosen[0]].share_milli + alternative.share_milli) / MILLI_PER_DEVICE
            busy = sum(held[p].share_milli > 0 or p in chosen for p in feasibility.usable)
            terms[PACKED] = busy / len(feasibility.usable)
        if len(chosen) > 1:
            linked, near = joined_pairs(shape, chosen)
            pairs = len(chosen) * (len(chosen) - 1) / 2
            terms |= {"links": linked / pairs, "numa": near / pairs}
        return {name: WEIGHTS[name] * value for name, value in terms.items()}


class LeastRecentScorer:
    """The worker, then the device, with the oldest last grant; real devices still come first.

    The score falls by one for each second of the worker's latest grant; 0 means that it had none.
    """

    uses_history = True

    def choose(self, alternative: Alternative, shape: Shape, held: Allocations, free: Sequence[int]) -> tuple[int, ...]:
        """The devices with the oldest grants. Links do not count, because they would break the round robin."""
        ranked = sorted(free, key=lambda p: (shape.devices[p].simulated, held[p].granted_s, p))
        return tuple(sorted(ranked[: device_count(alternative)]))

    def terms(
        self, alternative: Alternative, shape: Shape, held: Allocations, feasibility: Feasibility, chosen: Sequence[int]
    ) -> Mapping[str, float]:
        """1e10 for real devices, minus the time of the worker's latest grant."""
        real = all(not shape.devices[p].simulated for p in chosen)
        return {"real": 1e10 if real else 0.0, "granted": -max(held[p].granted_s for p in feasibility.usable)}


def _memory(shape: Shape, position: int) -> int:
    return shape.capacity[position][1]
