"""Fragmentation gradient descent: place where the idle accelerators that the mix can't use grow least.

"Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al., USENIX
ATC 2023), sections 3 and 4, as in https://github.com/hkust-adsl/kubernetes-scheduler-simulator: a request of the mix
finds all idle parts of a worker a fragment if it can't run there, and those parts that are too small for it if it
can; a worker's fragmentation is the mean over the mix. The score is its fall, through a sigmoid, **rounded down** to
hundredths: that makes ties, which go to the first worker and so leave the last ones whole. Without it, the openb
trace's default mix fills 94.4 % in place of 95.4 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_airflow.matching.demand import Asks, Floats, Mix, Numbers, Stock, accepts, ask_of
from hetero_airflow.matching.shapes import Shape
from hetero_airflow.model.request import Alternative
from hetero_airflow.units import MILLI_PER_DEVICE

POPULAR = 0.95
"""The mix is cut to the most frequent asks that make up this part of it, as in the paper's experiments."""

_STEEPEST = 100.0
"""Of what the sigmoid is asked; it is 0 there in all hundredths, and far from overflow."""


class Fragmentation:
    """A valuation by the fragmentation of this mix; see `valued.Valuation`."""

    name = "fragmentation"

    def __init__(self, mix: Mix) -> None:
        self._mix = mix

    def on(self, shape: Shape, asks: Asks) -> FragmentationOn:
        """The valuation of workers of one shape."""
        return FragmentationOn(shape, asks, popular(self._mix))


def popular(mix: Mix) -> Mix:
    """The most frequent of the mix up to `POPULAR`, host memory not looked at; ties by what is asked."""
    parts: dict[str, tuple[Alternative, float]] = {}
    for alternative, part in mix:
        bare = alternative.model_copy(update={"host_memory": None})
        parts[bare.key] = (bare, parts.get(bare.key, (bare, 0.0))[1] + part)
    ranked = sorted(parts.items(), key=lambda item: (-item[1][1], item[0]))
    total, taken, chosen = sum(part for _, part in mix), 0.0, []
    for _, (alternative, part) in ranked:
        if taken >= POPULAR * total:
            break
        taken += part
        chosen.append((alternative, part))
    return tuple((alternative, part / taken) for alternative, part in chosen)


class FragmentationOn:
    """Scores of asks on workers of one shape."""

    def __init__(self, shape: Shape, asks: Asks, mix: Mix) -> None:
        self._asks = asks
        here: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for alternative, part in mix:
            ask = ask_of(alternative)
            if ask.milli and accepts(shape, alternative):
                here.setdefault((ask.milli, ask.devices), []).append((ask.cores_milli, part))
        self._wanted = sorted(here)
        self._steps = np.array(sorted({cores for group in here.values() for cores, _ in group}), dtype=np.int64)
        self._weights = np.zeros((len(self._steps) + 1, len(self._wanted)))
        """[number of steps that the free cores reach, wanted]: the part of the mix that has cores enough."""
        for column, wanted in enumerate(self._wanted):
            for cores, part in here[wanted]:
                self._weights[np.searchsorted(self._steps, cores) + 1 :, column] += part
        self._known: dict[tuple[int, ...], tuple[Floats, Numbers]] = {}

    def row(self, stock: Stock) -> tuple[Floats, Numbers]:
        """The score of each ask, −∞ where it does not fit, and the part that a share is put on."""
        asks = self._asks
        known = self._known.get(stock.parts)
        if known is None:
            known = self._known[stock.parts] = self._after(stock.parts)
        left = stock.cores_milli - asks.cores_milli
        reached = self._steps.searchsorted(left, "right"), asks.variant
        after = known[0][reached]
        score = np.floor(100 / (1 + np.exp(np.minimum((after - after[-1]) / 1000, _STEEPEST))))
        score[(left < 0) | (asks.memory_bytes > stock.memory_bytes) | np.isinf(after)] = -np.inf
        return score[:-1], known[1][reached][:-1]

    def _after(self, parts: tuple[int, ...]) -> tuple[Floats, Numbers]:
        """[steps reached, variant]: the least fragmentation after each variant, and the part that is then taken."""
        shape = len(self._weights), len(self._asks.variants)
        least, taken = np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
        for column, (milli, count) in enumerate(self._asks.variants):
            for part, left in outcomes(parts, milli, count):
                amount = self._weights @ np.array([_usable(left, *wanted) for wanted in self._wanted])
                fragments = sum(left) - amount
                better = fragments < least[:, column]
                least[better, column], taken[better, column] = fragments[better], part
        return least, taken


def outcomes(parts: tuple[int, ...], milli: int, count: int) -> list[tuple[int, tuple[int, ...]]]:
    """(the part that is taken, what is left) for each different way to place that much; the smaller part first.

    >>> outcomes((300, 300, 1000), 300, 1)
    [(300, (0, 300, 1000)), (1000, (300, 300, 700))]
    >>> outcomes((300, 1000, 1000), 1000, 2)
    [(1000, (0, 0, 300))]
    """
    if not milli:
        return [(0, parts)]
    if milli < MILLI_PER_DEVICE:
        ways = []
        for part in sorted(set(parts)):
            if part >= milli:
                place = parts.index(part)
                ways.append((part, tuple(sorted((*parts[:place], part - milli, *parts[place + 1 :])))))
        return ways
    idle = parts.count(MILLI_PER_DEVICE)
    if idle < count:
        return []
    return [(MILLI_PER_DEVICE, (0,) * count + parts[: len(parts) - count])]


def _usable(parts: Sequence[int], milli: int, count: int) -> int:
    """Thousandths that such a request does not find a fragment, cores aside."""
    enough = [part for part in parts if part >= milli]
    return sum(enough) if len(enough) >= count else 0
