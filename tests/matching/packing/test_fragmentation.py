"""Fragmentation and classic fits against the words of their papers, without any table."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.matching.packing.best_fit import BestFitMeasure, LargestCapacity
from hetero_airflow.matching.packing.demand import (
    DeviceDemand,
    DeviceDemands,
    FreeCapacity,
    RequestMix,
    accelerator_positions,
    device_demand,
    free_capacity,
)
from hetero_airflow.matching.scoring import NO_ALLOCATION, Allocation
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import a_cpu, a_device, a_worker
from tests.benchmarks.dot_product import DotProductMeasure
from tests.benchmarks.fgd import FragmentationMeasure, popular_mix

GIB = 2**30


def a_shape(gpus: int = 4, cores: int = 16) -> Shape:
    devices = (a_cpu(cores), *(a_device(f"GPU-{n}", index=n) for n in range(gpus)))
    return Shapes().entry(a_worker("w", devices)).shape


def a_mix(*words: tuple[str, int, float]) -> RequestMix:
    """(device, cores beside it, part) of each."""
    return tuple(
        (DeviceRequest.parse(word, quota={"cpus": cores} if cores else None).alternatives[0], part)
        for word, cores, part in words
    )


MIX = a_mix(("gpu:0.5", 3, 0.3), ("gpu:0.19", 0, 0.1), ("gpu", 4, 0.25), ("gpu:2", 8, 0.15), ("cpu:5", 0, 0.2))


def remaining_after(stock: FreeCapacity, ask: DeviceDemand) -> list[FreeCapacity]:
    """All ways to place an ask, as what is left."""
    cores, memory = stock.cores_milli - ask.cores_milli, stock.memory_bytes - ask.memory_bytes
    if cores < 0 or memory < 0:
        return []
    if not ask.share_milli:
        return [FreeCapacity(cores, memory, stock.parts)]
    if ask.share_milli == 1000:
        if stock.parts.count(1000) < ask.devices:
            return []
        return [FreeCapacity(cores, memory, (0,) * ask.devices + stock.parts[: len(stock.parts) - ask.devices])]
    ways = []
    for place, part in enumerate(stock.parts):
        if part >= ask.share_milli:
            parts = (*stock.parts[:place], part - ask.share_milli, *stock.parts[place + 1 :])
            ways.append(FreeCapacity(cores, memory, tuple(sorted(parts))))
    return ways


def fragments(stock: FreeCapacity, mix: RequestMix) -> float:
    """The paper's F, in thousandths."""
    total = 0.0
    for alternative, part in mix:
        ask = device_demand(alternative)
        enough = [p for p in stock.parts if ask.share_milli and p >= ask.share_milli]
        runs = ask.share_milli and len(enough) >= ask.devices and stock.cores_milli >= ask.cores_milli
        total += part * (sum(stock.parts) - (sum(enough) if runs else 0))
    return total


stocks = st.builds(
    lambda cores, memory, parts: FreeCapacity(cores * 500, memory * GIB, tuple(sorted(parts))),
    st.integers(0, 32),
    st.integers(0, 64),
    st.lists(st.sampled_from((0, 150, 190, 310, 500, 620, 810, 1000)), min_size=4, max_size=4),
)
ASKS = DeviceDemands.of(
    [*(device_demand(one) for one, _ in MIX), DeviceDemand(1000, 4, 0, 0), DeviceDemand(310, 1, 2500, 20 * GIB)]
)


@given(stocks)
def test_fragmentation_is_the_papers(stock: FreeCapacity) -> None:
    cut = popular_mix(MIX)
    on = FragmentationMeasure(MIX).for_shape(a_shape(), ASKS)
    for number, (ask, score) in enumerate(zip(ASKS.all[:-1], on.scores(stock), strict=True)):
        ways = remaining_after(stock, ask)
        if not ways:
            assert score == -math.inf
            continue
        falls = [fragments(stock, cut) - fragments(way, cut) for way in ways]
        exact = 100 / (1 + math.exp(-max(falls) / 1000))
        assert score in (math.floor(exact + 1e-9), math.floor(exact - 1e-9))
        if 0 < ask.share_milli < 1000:
            place = stock.parts.index(on.part(stock, number))
            parts = (*stock.parts[:place], stock.parts[place] - ask.share_milli, *stock.parts[place + 1 :])
            cores, memory = stock.cores_milli - ask.cores_milli, stock.memory_bytes - ask.memory_bytes
            chosen = FreeCapacity(cores, memory, tuple(sorted(parts)))
            fall = fragments(stock, cut) - fragments(chosen, cut)
            assert 100 / (1 + math.exp(-fall / 1000)) >= score - 1e-6


def test_what_is_rare_is_no_part_of_the_mix() -> None:
    mix = a_mix(("gpu", 1, 0.9), ("gpu:2", 1, 0.06), ("gpu:4", 1, 0.04))
    assert [(str(one), round(part, 4)) for one, part in popular_mix(mix)] == [
        ("1 × gpu (cpus=1)", 0.9375),
        ("2 × gpu (cpus=1)", 0.0625),
    ]


def test_asks_that_differ_in_host_memory_alone_are_one_of_the_mix() -> None:
    first, second = (
        DeviceRequest.parse("gpu", quota={"host_memory": memory}).alternatives[0] for memory in ("1GiB", "2GiB")
    )
    assert first.key != second.key
    assert [(str(one), part) for one, part in popular_mix(((first, 0.5), (second, 0.5)))] == [("1 × gpu", 1.0)]


def test_a_mix_for_another_model_leaves_all_a_fragment() -> None:
    on = FragmentationMeasure(a_mix(("mi300x", 0, 1.0))).for_shape(
        a_shape(), DeviceDemands.of([DeviceDemand(1000, 1, 0, 0)])
    )
    assert on.scores(FreeCapacity(0, 0, (1000,) * 4)).tolist() == [math.floor(100 / (1 + math.exp(-1)))]


@given(stocks)
def test_classic_fits_are_what_they_say(stock: FreeCapacity) -> None:
    largest = LargestCapacity(16_000, 4000)
    best, dot = (kind(largest).for_shape(a_shape(), ASKS).scores(stock) for kind in (BestFitMeasure, DotProductMeasure))
    for ask, by_rest, by_product in zip(ASKS.all[:-1], best, dot, strict=True):
        if not remaining_after(stock, ask):
            assert by_rest == by_product == -math.inf
            continue
        cores, parts, amount = stock.cores_milli, sum(stock.parts), ask.share_milli * ask.devices
        rest = (cores - ask.cores_milli) / 32_000 + (parts - amount) / 8000
        product = (cores * ask.cores_milli / 16_000**2 + parts * amount / 4000**2) / 2
        for score, cost in ((by_rest, rest), (by_product, product)):
            assert score in (math.floor(100 * (1 - cost) + 1e-9), math.floor(100 * (1 - cost) - 1e-9))


def test_stock_is_what_is_not_held() -> None:
    shape = a_shape(gpus=2)
    held = [Allocation(3000, 4 * GIB) if device.kind == "cpu" else NO_ALLOCATION for device in shape.devices]
    held[accelerator_positions(shape)[0]] = Allocation(300)
    assert free_capacity(shape, held) == FreeCapacity(13_000, 60 * GIB, (700, 1000))
