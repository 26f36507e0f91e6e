"""What a free part of an accelerator is worth, by the shares that requests ask for.

The dual prices of the cutting-stock problem (Gilmore and Gomory, Operations Research 9, 1961): all shares of a request
mix are to be served with the fewest devices, and each device can be filled in many ways. The price of a share is what
one more of it would cost in devices. A part is worth the most expensive shares that fit it together. The program is
degenerate (one optimum has many prices), so prices are averaged over random samples of the mix, with a fixed seed.
"""

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
"""At most this many different shares are considered, the most frequent ones."""
_TOLERANCE = 1e-7
_PARTS = MILLI_PER_DEVICE + 1


def share_prices(mix: RequestMix) -> tuple[float, ...]:
    """[1001] the value of a free part of this many thousandths, in devices; 1 for an idle device.

    >>> from hetero_airflow.model.request import DeviceRequest
    >>> half, whole = (DeviceRequest.parse(word).alternatives[0] for word in ("gpu:0.5", "gpu"))
    >>> prices = share_prices(((half, 0.3), (whole, 0.7)))
    >>> [prices[part] for part in (499, 500, 999, 1000)]
    [0.0, 0.5, 0.5, 1.0]
    """
    sizes: dict[int, float] = {}
    for alternative, part in mix:
        demand = device_demand(alternative)
        if 0 < demand.share_milli < MILLI_PER_DEVICE:
            sizes[demand.share_milli] = sizes.get(demand.share_milli, 0.0) + part
    values = np.zeros(_PARTS)
    if sizes:
        most_frequent = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:MAX_SIZES]
        values = _mean_values(dict(sorted(most_frequent)))
    values[MILLI_PER_DEVICE] = 1.0
    return tuple(values.tolist())


def _mean_values(frequencies: Mapping[int, float]) -> Floats:
    """[1001] the mean over the samples.

    :param frequencies: size of a share → its part of the mix
    """
    sizes = np.array(list(frequencies))
    parts = np.array(list(frequencies.values()))
    rng = np.random.default_rng(0)
    fillings = [_equal_filling(size, index, len(sizes)) for index, size in enumerate(sizes.tolist())]
    total = np.zeros(_PARTS)
    for _ in range(SAMPLES):
        demand = rng.multinomial(SAMPLE_SIZE, parts / parts.sum()).astype(np.float64)
        values = _part_values(sizes, demand, fillings)
        total += values / values[-1] if values[-1] else values
    return total / SAMPLES


def _equal_filling(size: int, index: int, width: int) -> Floats:
    """A device filled with shares of one size."""
    filling = np.zeros(width)
    filling[index] = MILLI_PER_DEVICE // size
    return filling


def _part_values(sizes: np.ndarray, demand: Floats, fillings: list[Floats]) -> Floats:
    """[1001] the value of parts for one demand. Better ways to fill a device are added to `fillings`."""
    while True:
        matrix = np.array(fillings).T
        rows, columns = np.nonzero(matrix)
        limit = np.full(len(sizes), math.inf)
        solution = minimise(np.ones(len(fillings)), (rows, columns, matrix[rows, columns]), limit, demand)
        assert solution is not None, "each size alone fills a device, so that there is a solution"
        values, best = _best_filling(sizes, np.maximum(solution.prices, 0.0))
        if values[-1] <= 1 + _TOLERANCE:
            return values
        fillings.append(best)


def _best_filling(sizes: np.ndarray, prices: Floats) -> tuple[Floats, Floats]:
    """[1001] the price of the most expensive shares that fit each part; and how many of each fill a whole device."""
    values, last = [0.0] * _PARTS, [-1] * _PARTS
    shares = list(zip(sizes.tolist(), prices.tolist(), strict=True))
    for part in range(1, _PARTS):
        best, chosen = values[part - 1], -1
        for index, (size, price) in enumerate(shares):
            if size > part:
                break
            if values[part - size] + price > best + 1e-12:
                best, chosen = values[part - size] + price, index
        values[part], last[part] = best, chosen
    filling, part = np.zeros(len(sizes)), MILLI_PER_DEVICE
    while part > 0:
        if last[part] < 0:
            part -= 1
        else:
            filling[last[part]] += 1
            part -= int(sizes[last[part]])
    return np.array(values), filling
