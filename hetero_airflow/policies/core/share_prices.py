"""What a free part of an accelerator is worth, by the shares that are asked for.

The dual prices of the cutting-stock problem (Gilmore and Gomory, Operations Research 9, 1961): to serve all shares
of a mix with the fewest devices, each filled in one of many ways. A share's price is what one more of it would cost
in devices; a part is worth the dearest shares that fit it together. The program is degenerate, one optimum of
many prices, so prices are averaged over random samples of the mix, with a generator of fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hetero_airflow.matching.packing.demand import Floats, RequestMix, device_demand
from hetero_airflow.policies.core.linear_program import minimise
from hetero_airflow.units import MILLI_PER_DEVICE

SAMPLES = 30
SAMPLE_SIZE = 400
"""More of either changes openb's allocation by less than its spread over orders."""
MAX_SIZES = 48
"""Different shares that are looked at; of more, the most frequent."""
_BETTER = 1e-7
_PARTS = MILLI_PER_DEVICE + 1


def share_prices(mix: RequestMix) -> tuple[float, ...]:
    """[1001] the worth of a free part of so many thousandths, in devices; 1 for an idle device.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> def one(word):
    ...     return DeviceRequest.parse(word).alternatives[0]
    >>> prices = share_prices(((one("gpu:0.5"), 0.3), (one("gpu"), 0.7)))
    >>> [prices[part] for part in (499, 500, 999, 1000)]
    [0.0, 0.5, 0.5, 1.0]
    """
    asked: dict[int, float] = {}
    for alternative, part in mix:
        ask = device_demand(alternative)
        if 0 < ask.share_milli < MILLI_PER_DEVICE:
            asked[ask.share_milli] = asked.get(ask.share_milli, 0.0) + part
    worth = np.zeros(_PARTS)
    if asked:
        chosen = dict(sorted(sorted(asked.items(), key=lambda item: (-item[1], item[0]))[:MAX_SIZES]))
        worth = _mean_worth(chosen)
    worth[MILLI_PER_DEVICE] = 1.0
    return tuple(worth.tolist())


def _mean_worth(asked: Mapping[int, float]) -> Floats:
    sizes = np.array(list(asked))
    parts = np.array(list(asked.values()))
    rng = np.random.default_rng(0)
    fillings = [_filling(size, index, len(sizes)) for index, size in enumerate(sizes.tolist())]
    total = np.zeros(_PARTS)
    for _ in range(SAMPLES):
        demand = rng.multinomial(SAMPLE_SIZE, parts / parts.sum()).astype(np.float64)
        worth = _worth(sizes, demand, fillings)
        total += worth / worth[-1] if worth[-1] else worth
    return total / SAMPLES


def _filling(size: int, index: int, width: int) -> Floats:
    filling = np.zeros(width)
    filling[index] = MILLI_PER_DEVICE // size
    return filling


def _worth(sizes: np.ndarray, demand: Floats, fillings: list[Floats]) -> Floats:
    """[1001] the worth of parts for one demand; ways to fill a device are added to `fillings` as they are found."""
    while True:
        matrix = np.array(fillings).T
        rows, columns = np.nonzero(matrix)
        limit = np.full(len(sizes), math.inf)
        solution = minimise(np.ones(len(fillings)), (rows, columns, matrix[rows, columns]), limit, demand)
        assert solution is not None, "each size alone fills a device, so that there is a solution"
        worth, best = _dearest(sizes, np.maximum(solution.prices, 0.0))
        if worth[-1] <= 1 + _BETTER:
            return worth
        fillings.append(best)


def _dearest(sizes: np.ndarray, prices: Floats) -> tuple[Floats, Floats]:
    """[1001] the price of the dearest shares that fit each part together; and which fill a whole device."""
    worth, last = [0.0] * _PARTS, [-1] * _PARTS
    offers = [
        (size, price, index) for index, (size, price) in enumerate(zip(sizes.tolist(), prices.tolist(), strict=True))
    ]
    for part in range(1, _PARTS):
        best, chosen = worth[part - 1], -1
        for size, price, index in offers:
            if size > part:
                break
            if worth[part - size] + price > best + 1e-12:
                best, chosen = worth[part - size] + price, index
        worth[part], last[part] = best, chosen
    filling, part = np.zeros(len(sizes)), MILLI_PER_DEVICE
    while part > 0:
        if last[part] < 0:
            part -= 1
        else:
            filling[last[part]] += 1
            part -= int(sizes[last[part]])
    return np.array(worth), filling
