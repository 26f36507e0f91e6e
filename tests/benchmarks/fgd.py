"""Fragmentation gradient descent: place where the idle accelerators that the mix can't use grow least.

"Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al., USENIX
ATC 2023), sections 3 and 4, as in https://github.com/hkust-adsl/kubernetes-scheduler-simulator: a request of the mix
finds all idle parts of a worker a fragment if it can't run there, and those parts that are too small for it if it
can; a worker's fragmentation is the mean over the mix. The score is its fall, through a sigmoid, **rounded down** to
hundredths: that makes ties, which go to the first worker and so leave the last ones whole. Without it, the openb
trace's default mix fills 94.4 % in place of 95.4 %.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np

from hetero_airflow.matching.packing.demand import (
    DeviceDemand,
    Floats,
    FreeCapacity,
    RequestMix,
    device_demand,
    has_suitable_devices,
)
from hetero_airflow.matching.packing.scorer import ROUNDING_TOLERANCE
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.units import MILLI_PER_DEVICE
from tests.benchmarks.demand_arrays import ArrayMeasure, DeviceDemands, Numbers

POPULAR_PART = 0.95
"""The mix is cut to the most frequent asks that make up this part of it, as in the paper's experiments."""

_STEEPEST = 500.0
"""What the sigmoid is asked at most: far beyond where it is 0 in all hundredths, and far from overflow."""


class FragmentationMeasure(ArrayMeasure):
    """A valuation by the fragmentation of this mix; see `PackingMeasure`."""

    name = "fragmentation"

    def __init__(self, mix: RequestMix) -> None:
        self._mix = popular_mix(mix)
        self._on: dict[tuple[tuple[bool, ...], tuple[DeviceDemand, ...]], FragmentationOnShape] = {}

    def for_demands(self, shape: Shape, asks: DeviceDemands) -> "FragmentationOnShape":
        """The valuation of workers of one shape."""
        here = tuple(has_suitable_devices(shape, alternative) for alternative, _ in self._mix)
        on = self._on.get((here, asks.all))
        if on is None:
            mix = [(device_demand(alternative), part) for alternative, part in compress(self._mix, here)]
            on = self._on[here, asks.all] = FragmentationOnShape(
                asks, [(ask, part) for ask, part in mix if ask.share_milli]
            )
        return on


def popular_mix(mix: RequestMix) -> RequestMix:
    """The most frequent of the mix up to `POPULAR`, host memory not looked at; ties go to the larger ask, as theirs do.

    How ties go matters: openb's default mix is cut between asks for 8 GPUs that are equally frequent.
    """
    parts: dict[str, tuple[Alternative, float]] = {}
    for alternative, part in mix:
        bare = Alternative.model_validate(alternative.model_dump(exclude={"host_memory"}, exclude_defaults=True))
        parts[bare.key] = (bare, parts.get(bare.key, (bare, 0.0))[1] + part)
    ranked = sorted(parts.items(), key=lambda item: (-item[1][1], *_smaller(item[1][0]), item[0]))
    total, taken, chosen = sum(part for _, part in mix), 0.0, []
    for _, (alternative, part) in ranked:
        if taken >= POPULAR_PART * total:
            break
        taken += part
        chosen.append((alternative, part))
    return tuple((alternative, part / taken) for alternative, part in chosen)


def _smaller(alternative: Alternative) -> tuple[int, int, int]:
    ask = device_demand(alternative)
    return -ask.cores_milli, -ask.share_milli, -ask.devices


class FragmentationOnShape:
    """Scores of asks on workers that this part of the mix can use; amounts in whole accelerators.

    A worker's fragmentation is a sum over its parts, less what requests for several devices can use of its idle ones.
    So the change by a placement depends on the part that is taken (or the number of idle ones) alone, and is
    tabulated, as everything here is, by the number of steps that the free cores reach: of the mix, these have enough.
    """

    def __init__(self, asks: DeviceDemands, here: Sequence[tuple[DeviceDemand, float]]) -> None:
        self._asks = asks
        self._steps = np.array(sorted({0, *(ask.cores_milli for ask, _ in here)}), dtype=np.int64)
        self._row = asks.variant * (len(self._steps) + 1)
        self._sets = [(ask, self._enough(ask) * part) for ask, part in here if ask.devices > 1]
        part = np.arange(MILLI_PER_DEVICE + 1)[:, None] / MILLI_PER_DEVICE
        self._fragment = np.repeat(part, len(self._steps) + 1, axis=1)
        """[part, steps reached]: what is a fragment of one part, and all of it to requests for several devices."""
        for ask, weight in here:
            if ask.devices == 1:
                self._fragment[ask.share_milli :] -= part[ask.share_milli :] * (self._enough(ask) * weight)
        self._changes: dict[tuple[int, int], Floats] = {}
        self._known: dict[tuple[int, ...], Floats] = {}

    def scores(self, stock: FreeCapacity) -> Floats:
        """The score of each ask, −∞ where it does not fit."""
        after = self._after(stock.parts).take(self._places(stock))
        score = _rounded(after - after[-1])
        np.putmask(score, (after == np.inf) | (self._asks.memory_bytes > stock.memory_bytes), -np.inf)
        return score[:-1]

    def part(self, stock: FreeCapacity, ask: int) -> int:
        """The free part that an ask takes, if it is a share: the smallest of those with the greatest score."""
        places, idle = self._places(stock), stock.parts.count(MILLI_PER_DEVICE)
        after = self._after(stock.parts)
        different = sorted(set(stock.parts))
        changes = np.array([self._change(part, idle).item(places[ask]) for part in different])
        least, now = after.item(places[ask]), after.item(places[-1])
        return different[int(_rounded(least - changes.min() + changes - now).argmax())]

    def _places(self, stock: FreeCapacity) -> Numbers:
        return self._row + self._steps.searchsorted(stock.cores_milli - self._asks.cores_milli, "right")

    def _after(self, parts: tuple[int, ...]) -> Floats:
        """[variant, steps reached]: the least fragmentation after each; ∞ where it does not fit."""
        known = self._known.get(parts)
        if known is None:
            idle = parts.count(MILLI_PER_DEVICE)
            now = self._fragment[list(parts)].sum(axis=0) - self._usable_sets(idle)
            changes = [self._change(part, idle) for part in set(parts)]
            known = self._known[parts] = now + np.minimum.reduce([self._change(0, idle), *changes])
        return known

    def _change(self, part: int, idle: int) -> Floats:
        """[variant, steps reached]: by how much fragmentation grows if the variant is placed on that part, of which
        the whole ones are so many; ∞ where it does not fit, as where no step is reached: cores are overdrawn."""
        key = (part, idle if part == MILLI_PER_DEVICE else 0)
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = np.full((len(self._asks.variants), len(self._steps) + 1), np.inf)
            for row, (share_milli, devices) in zip(change, self._asks.variants, strict=True):
                if not share_milli:
                    row[1:] = 0.0
                elif share_milli <= part and devices <= max(key[1], 1):
                    remaining = self._fragment[part - share_milli] - self._fragment[part]
                    sets = self._usable_sets(key[1]) - self._usable_sets(key[1] - devices) if key[1] else 0.0
                    row[1:] = (devices * remaining + sets)[1:]
        return change

    def _enough(self, ask: DeviceDemand) -> Floats:
        """[steps reached] 1 where the ask has cores enough."""
        return (np.arange(len(self._steps) + 1) > np.searchsorted(self._steps, ask.cores_milli)).astype(np.float64)

    def _usable_sets(self, idle: int) -> Floats:
        """[steps reached] what requests for several devices can use of so many idle ones."""
        usable = np.zeros(len(self._steps) + 1)
        for ask, weight in self._sets:
            if ask.devices <= idle:
                usable += idle * weight
        return usable


def _rounded(growth: Floats) -> Floats:
    score = np.minimum(growth, _STEEPEST)
    np.exp(score, out=score)
    score += 1
    np.divide(100, score, out=score)
    score += ROUNDING_TOLERANCE
    return np.floor(score, out=score)
