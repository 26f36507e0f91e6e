"""How good is a placement that is possible? A number with named terms, and which devices of the worker.

A `Placement` is the plug-in point: it orders the free devices of a worker by preference, and scores
what was chosen. `TightFitScorer` is the default of the house, `LeastRecentScorer` serves round robin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hetero_airflow.matching.close_devices import closest_devices, joined_pairs
from hetero_airflow.matching.feasibility import Feasibility, device_count, device_need
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative


class Allocation(NamedTuple):
    """What is leased of a device at one moment of a decision; `granted_s` is when it last was (Unix time)."""

    share_milli: int = 0
    memory_bytes: int = 0
    granted_s: float = 0.0
    """0 for never, and wherever the placement does not use it, so that more workers are alike."""


NO_ALLOCATION = Allocation()


class PlacementScorer(Protocol):
    """Which of a worker's free devices, and how good that is. Pure; looks at positions, never at ids."""

    uses_history: bool
    """Whether `Allocation.granted_s` is to be filled in."""

    def choose(
        self, alternative: Alternative, shape: Shape, held: Sequence[Allocation], free: Sequence[int]
    ) -> tuple[int, ...]:
        """As many of the free positions as the alternative asks for; ties go to the lower position."""
        ...

    def terms(
        self,
        alternative: Alternative,
        shape: Shape,
        held: Sequence[Allocation],
        feasibility: Feasibility,
        chosen: Sequence[int],
    ) -> Mapping[str, float]:
        """The terms of the score, weights included; the placement with the greatest sum is taken."""
        ...


WEIGHTS: Mapping[str, float] = {
    "real": 20.0,
    "memory": 10.0,
    "links": 4.0,
    "shared": 4.0,
    "numa": 2.0,
    "no_accelerator": 2.0,
    "packed": 0.4,
}
"""What each term of `TightFitScorer` counts for; each lies between 0 and 1 before.

A real device always goes before a simulated one. Twice the memory costs half a point, as much as a
worker's worth of packing, so that big devices stay for big requests. A link outweighs both.
"""


class TightFitScorer:
    """The tightest fit: small devices before big ones, shares onto devices that are shared already, full workers first.

    Best fit in the sense of multidimensional bin packing; see `WEIGHTS` for the trade-offs.
    """

    uses_history = False

    def choose(
        self, alternative: Alternative, shape: Shape, held: Sequence[Allocation], free: Sequence[int]
    ) -> tuple[int, ...]:
        """Real devices, then those most shared, then the smallest; of several, the best joined."""
        count = device_count(alternative)
        preferred = sorted(free, key=lambda p: (shape.devices[p].simulated, -held[p].share_milli, _memory(shape, p), p))
        if count > 1 and sum(not shape.devices[p].simulated for p in preferred) >= count:
            preferred = [p for p in preferred if not shape.devices[p].simulated]
        return closest_devices(shape, preferred, count)

    def terms(
        self,
        alternative: Alternative,
        shape: Shape,
        held: Sequence[Allocation],
        feasibility: Feasibility,
        chosen: Sequence[int],
    ) -> Mapping[str, float]:
        """See `WEIGHTS`; a term that says nothing about the alternative is left out."""
        real = sum(not shape.devices[p].simulated for p in chosen) / len(chosen)
        terms = {"real": real}
        if alternative.kind == "cpu":
            terms["no_accelerator"] = 1.0 if shape.accelerators == 0 else 0.0
            cpu = chosen[0]
            taken = held[cpu].share_milli + device_need(alternative, shape.devices[cpu]).share_milli
            terms["packed"] = taken / shape.capacity[cpu][0]
        else:
            gib = max(_memory(shape, p) for p in chosen) / 2**30
            terms["memory"] = 1 - math.log2(1 + gib) / 20
            if alternative.share is not None:
                terms["shared"] = (held[chosen[0]].share_milli + alternative.share_milli) / 1000
            busy = sum(held[p].share_milli > 0 or p in chosen for p in feasibility.usable)
            terms["packed"] = busy / len(feasibility.usable)
        if len(chosen) > 1:
            linked, near = joined_pairs(shape, chosen)
            pairs = len(chosen) * (len(chosen) - 1) / 2
            terms |= {"links": linked / pairs, "numa": near / pairs}
        return {name: WEIGHTS[name] * value for name, value in terms.items()}


class LeastRecentScorer:
    """The worker, then the device, that was granted longest ago; real ones first all the same.

    The score falls by one for each second of the worker's latest grant; 0 means never.
    """

    uses_history = True

    def choose(
        self, alternative: Alternative, shape: Shape, held: Sequence[Allocation], free: Sequence[int]
    ) -> tuple[int, ...]:
        """The devices granted longest ago; links are not looked at, since they would break the turn."""
        count = device_count(alternative)
        return tuple(sorted(sorted(free, key=lambda p: (shape.devices[p].simulated, held[p].granted_s, p))[:count]))

    def terms(
        self,
        alternative: Alternative,
        shape: Shape,
        held: Sequence[Allocation],
        feasibility: Feasibility,
        chosen: Sequence[int],
    ) -> Mapping[str, float]:
        """Ten thousand million for real devices, less the time of the worker's latest grant."""
        real = all(not shape.devices[p].simulated for p in chosen)
        return {"real": 1e10 if real else 0.0, "granted": -max(held[p].granted_s for p in feasibility.usable)}


def _memory(shape: Shape, position: int) -> int:
    return shape.devices[position].memory_bytes
