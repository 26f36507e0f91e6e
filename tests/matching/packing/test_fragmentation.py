"""Fragmentation and classic fits against the words of their papers, without any table.

The expected fill of workers, compared with direct computation. Updated scores equal new ones.
"""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.matching.packing.demand import (
    DeviceDemand,
    FreeCapacity,
    RequestMix,
    accelerator_positions,
    device_demand,
    free_capacity,
)
from hetero_airflow.matching.packing.expected_fill import ExpectedFillMeasure
from hetero_airflow.matching.packing.fill_tables import hole_table, host_table, idle_table, protection_table
from hetero_airflow.matching.packing.scorer import PackingMeasure
from hetero_airflow.matching.scoring import NO_ALLOCATION, Allocation
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import a_cpu, a_device, a_worker
from tests.benchmarks.demand_arrays import DeviceDemands
from tests.benchmarks.fgd import FragmentationMeasure, popular_mix
from tests.benchmarks.packing_by_amounts import BestFitMeasure, DotProductMeasure, LargestCapacity
from tests.benchmarks.scoreboard import Scoreboard

GIB = 2**30


def a_shape(gpus: int = 4, cores: int = 16) -> Shape:
    devices = (a_cpu(cores), *(a_device(f"GPU-{n}", index=n) for n in range(gpus)))
    return Shapes().entry(a_worker("w", devices)).shape


def a_mix(*entries: tuple[str, int, float]) -> RequestMix:
    """(device, cores beside it, part) of each."""
    return tuple(
        (DeviceRequest.parse(word, quota={"cpus": cores} if cores else None).alternatives[0], part)
        for word, cores, part in entries
    )


MIX = a_mix(("gpu:0.5", 3, 0.3), ("gpu:0.19", 0, 0.1), ("gpu", 4, 0.25), ("gpu:2", 8, 0.15), ("cpu:5", 0, 0.2))


def remaining_after(free: FreeCapacity, demand: DeviceDemand) -> list[FreeCapacity]:
    """All options to place an demand, as what is left."""
    cores, memory = free.cores_milli - demand.cores_milli, free.memory_bytes - demand.memory_bytes
    if cores < 0 or memory < 0:
        return []
    if not demand.share_milli:
        return [FreeCapacity(cores, memory, free.parts)]
    if demand.share_milli == 1000:
        if free.parts.count(1000) < demand.devices:
            return []
        return [FreeCapacity(cores, memory, (0,) * demand.devices + free.parts[: len(free.parts) - demand.devices])]
    options = []
    for place, part in enumerate(free.parts):
        if part >= demand.share_milli:
            parts = (*free.parts[:place], part - demand.share_milli, *free.parts[place + 1 :])
            options.append(FreeCapacity(cores, memory, tuple(sorted(parts))))
    return options


def fragments(free: FreeCapacity, mix: RequestMix) -> float:
    """The paper's F, in thousandths."""
    total = 0.0
    for alternative, part in mix:
        demand = device_demand(alternative)
        enough = [p for p in free.parts if demand.share_milli and p >= demand.share_milli]
        runs = demand.share_milli and len(enough) >= demand.devices and free.cores_milli >= demand.cores_milli
        total += part * (sum(free.parts) - (sum(enough) if runs else 0))
    return total


stocks = st.builds(
    lambda cores, memory, parts: FreeCapacity(cores * 500, memory * GIB, tuple(sorted(parts))),
    st.integers(0, 32),
    st.integers(0, 64),
    st.lists(st.sampled_from((0, 150, 190, 310, 500, 620, 810, 1000)), min_size=4, max_size=4),
)
DEMANDS = DeviceDemands.of(
    [
        *(device_demand(alternative) for alternative, _ in MIX),
        DeviceDemand(1000, 4, 0, 0),
        DeviceDemand(310, 1, 2500, 20 * GIB),
    ]
)


@given(stocks)
def test_fragmentation_is_as_in_the_paper(free: FreeCapacity) -> None:
    cut = popular_mix(MIX)
    on = FragmentationMeasure(MIX).for_demands(a_shape(), DEMANDS)
    for number, (demand, score) in enumerate(zip(DEMANDS.all[:-1], on.scores(free), strict=True)):
        options = remaining_after(free, demand)
        if not options:
            assert score == -math.inf
            continue
        falls = [fragments(free, cut) - fragments(option, cut) for option in options]
        exact = 100 / (1 + math.exp(-max(falls) / 1000))
        assert score in (math.floor(exact + 1e-9), math.floor(exact - 1e-9))
        if 0 < demand.share_milli < 1000:
            place = free.parts.index(on.part(free, number))
            parts = (*free.parts[:place], free.parts[place] - demand.share_milli, *free.parts[place + 1 :])
            cores, memory = free.cores_milli - demand.cores_milli, free.memory_bytes - demand.memory_bytes
            chosen = FreeCapacity(cores, memory, tuple(sorted(parts)))
            fall = fragments(free, cut) - fragments(chosen, cut)
            assert 100 / (1 + math.exp(-fall / 1000)) >= score - 1e-6


def test_rare_demands_are_not_part_of_the_mix() -> None:
    mix = a_mix(("gpu", 1, 0.9), ("gpu:2", 1, 0.06), ("gpu:4", 1, 0.04))
    assert [(str(demand), round(part, 4)) for demand, part in popular_mix(mix)] == [
        ("1 × gpu (cpus=1)", 0.9375),
        ("2 × gpu (cpus=1)", 0.0625),
    ]


def test_demands_that_differ_only_in_host_memory_count_as_one() -> None:
    first, second = (
        DeviceRequest.parse("gpu", quota={"host_memory": memory}).alternatives[0] for memory in ("1GiB", "2GiB")
    )
    assert first.key != second.key
    assert [(str(demand), part) for demand, part in popular_mix(((first, 0.5), (second, 0.5)))] == [("1 × gpu", 1.0)]


def test_a_mix_for_another_model_makes_everything_a_fragment() -> None:
    on = FragmentationMeasure(a_mix(("mi300x", 0, 1.0))).for_shape(a_shape(), DeviceDemand(1000, 1, 0, 0))
    assert on.score(FreeCapacity(0, 0, (1000,) * 4)) == math.floor(100 / (1 + math.exp(-1)))


@given(stocks)
def test_best_fit_and_dot_product_follow_their_definitions(free: FreeCapacity) -> None:
    largest = LargestCapacity(16_000, 4000)
    best, dot = (
        kind(largest).for_demands(a_shape(), DEMANDS).scores(free) for kind in (BestFitMeasure, DotProductMeasure)
    )
    for demand, by_rest, by_product in zip(DEMANDS.all[:-1], best, dot, strict=True):
        if not remaining_after(free, demand):
            assert by_rest == by_product == -math.inf
            continue
        cores, parts, amount = free.cores_milli, sum(free.parts), demand.share_milli * demand.devices
        free_parts = (cores - demand.cores_milli) / 32_000 + (parts - amount) / 8000
        product = (cores * demand.cores_milli / 16_000**2 + parts * amount / 4000**2) / 2
        for score, cost in ((by_rest, free_parts), (by_product, product)):
            assert score in (math.floor(100 * (1 - cost) + 1e-9), math.floor(100 * (1 - cost) - 1e-9))


def test_free_capacity_is_what_is_not_held() -> None:
    shape = a_shape(gpus=2)
    held = [Allocation(3000, 4 * GIB) if device.kind == "cpu" else NO_ALLOCATION for device in shape.devices]
    held[accelerator_positions(shape)[0]] = Allocation(300)
    assert free_capacity(shape, held) == FreeCapacity(13_000, 60 * GIB, (700, 1000))


LINEAR = tuple(part / 1000 for part in range(1001))
SUITABLE = [
    (DeviceDemand(400, 1, 0, 0), 0.5),
    (DeviceDemand(700, 1, 0, 0), 0.2),
    (DeviceDemand(1000, 1, 0, 0), 0.2),
    (DeviceDemand(1000, 2, 0, 0), 0.1),
]


def test_a_hole_is_filled_by_a_stream_of_requests() -> None:
    def sold(part: int, arrivals: int) -> float:
        if not arrivals:
            return 0.0
        later = sold(part, arrivals - 1)
        mean = 0.0
        for demand, chance in SUITABLE:
            fits = demand.devices == 1 and demand.share_milli <= part
            mean += chance * (demand.share_milli + sold(part - demand.share_milli, arrivals - 1) if fits else later)
        return mean

    few = 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetero_airflow.matching.packing.fill_tables.HOLE_ARRIVALS", few)
        expected = hole_table(SUITABLE)
    for part in (0, 399, 400, 699, 700, 800, 1000):
        assert expected[part] == pytest.approx(sold(part, few))


def test_idle_accelerators_are_filled_by_sets_and_shares() -> None:
    alone = idle_table([(DeviceDemand(1000, 2, 0, 0), 1.0)], hole_table([]), 5)
    assert alone.tolist() == [0.0, 0.0, 2000.0, 2000.0, 4000.0, 4000.0]
    shares = [(DeviceDemand(400, 1, 0, 0), 1.0)]
    assert idle_table(shares, hole_table(shares), 2).tolist() == [0.0, 800.0, 1600.0]


def test_only_sets_of_the_mix_are_protected() -> None:
    assert protection_table([(DeviceDemand(1000, 1, 0, 0), 1.0)], 3).tolist() == [0.0] * 4
    table = protection_table([(DeviceDemand(1000, 1, 0, 0), 0.5), (DeviceDemand(1000, 2, 0, 0), 0.5)], 3)
    assert table[:2].tolist() == [0.0, 0.0]
    assert table[2] > 0
    assert table[3] == pytest.approx(1.5 * table[2])


def test_without_cores_the_fill_is_zero_and_with_all_cores_it_is_unlimited() -> None:
    table = host_table([(DeviceDemand(1000, 1, 4000, 0), 1.0, 4000)], 2, 8000)
    two = table[-1]
    assert (two[0], two[-1]) == (0.0, 1.0)
    assert two[len(two) // 2] == pytest.approx(0.5)
    assert (np.diff(table, axis=1) >= 0).all()


def test_a_share_goes_into_a_hole_that_nothing_else_can_use() -> None:
    mix = a_mix(("gpu:0.81", 0, 0.5), ("gpu:0.47", 0, 0.4), ("gpu:0.16", 0, 0.1))
    prices = [0.0 if part < 470 else 0.5 if part < 810 else 1.0 for part in range(1001)]
    on = ExpectedFillMeasure(mix, prices).for_shape(a_shape(gpus=3), DeviceDemand(160, 1, 0, 0))
    assert on.part(FreeCapacity(16_000, 64 * GIB, (190, 530, 530))) == 190


def test_a_worker_with_few_cores_gets_a_low_score() -> None:
    mix = a_mix(("gpu", 4, 1.0))
    on = ExpectedFillMeasure(mix, LINEAR).for_shape(a_shape(gpus=4, cores=16), DeviceDemand(0, 0, 8000, 0))
    scarce, ample = (on.score(FreeCapacity(16_000, 64 * GIB, parts)) for parts in ((1000,) * 4, (0, 0, 0, 1000)))
    assert scarce < ample


@given(stocks)
def test_a_demand_that_does_not_fit_has_no_score(free: FreeCapacity) -> None:
    demands = [DeviceDemand(310, 1, 2000, GIB), DeviceDemand(1000, 2, 0, 0), DeviceDemand(0, 0, 3000, 30 * GIB)]
    measure = ExpectedFillMeasure(MIX, LINEAR)
    scores = [measure.for_shape(a_shape(), demand).score(free) for demand in demands]
    cores, memory, parts = free
    fits = [
        parts[-1] >= 310 and cores >= 2000 and memory >= GIB,
        parts.count(1000) >= 2,
        cores >= 3000 and memory >= 30 * GIB,
    ]
    assert [score > -math.inf for score in scores] == fits


@pytest.mark.parametrize("measure", [FragmentationMeasure(MIX), ExpectedFillMeasure(MIX, LINEAR)])
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.integers(0, len(MIX) - 1), max_size=30), seed=st.integers(0, 9))
def test_an_updated_scoreboard_equals_a_new_one(measure: PackingMeasure, steps: list[int], seed: int) -> None:
    workers = [
        a_worker(f"w{n}", (a_cpu(8 + n % 2), *(a_device(f"GPU-{d}", index=d) for d in range(1 + n % 3))))
        for n in range(6)
    ]
    alternatives = [alternative for alternative, _ in MIX]
    scoreboard, rng = Scoreboard(measure, workers, alternatives), Random(seed)
    for step in steps:
        chosen = scoreboard.best(step) if rng.random() < 0.5 else next(iter(scoreboard.fitting(step)), None)
        assert (chosen is None) == bool((scoreboard.scores[step] == -math.inf).all())
        if chosen is not None:
            scoreboard.take(step, chosen)
    for number, worker in enumerate(workers):
        alone = Scoreboard(measure, [worker], alternatives)
        alone.free[0] = scoreboard.free[number]
        alone.refresh(0)
        assert (alone.scores[:, 0] == scoreboard.scores[:, number]).all()
        for index, demand in enumerate(device_demand(alternative) for alternative in alternatives):
            assert (
                demand.cores_milli <= scoreboard.free[number].cores_milli
                or scoreboard.scores[index, number] == -math.inf
            )
