"""The expected fill of workers, compared with direct computation. Updated scores equal new ones."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.matching.packing.demand import DeviceDemand, DeviceDemands, FreeCapacity, device_demand
from hetero_airflow.matching.packing.expected_fill import ExpectedFillMeasure
from hetero_airflow.matching.packing.fill_tables import hole_table, host_table, idle_table, protection_table
from hetero_airflow.matching.packing.scorer import PackingMeasure
from hetero_airflow.testing import a_cpu, a_device, a_worker
from tests.benchmarks.fgd import FragmentationMeasure
from tests.benchmarks.scoreboard import Scoreboard
from tests.matching.packing.test_fragmentation import GIB, MIX, a_mix, a_shape, stocks

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
    on = ExpectedFillMeasure(mix, prices).for_shape(a_shape(gpus=3), DeviceDemands.of([DeviceDemand(160, 1, 0, 0)]))
    assert on.part(FreeCapacity(16_000, 64 * GIB, (190, 530, 530)), 0) == 190


def test_a_worker_with_few_cores_gets_a_low_score() -> None:
    mix = a_mix(("gpu", 4, 1.0))
    on = ExpectedFillMeasure(mix, LINEAR).for_shape(
        a_shape(gpus=4, cores=16), DeviceDemands.of([DeviceDemand(0, 0, 8000, 0)])
    )
    scarce, ample = (on.scores(FreeCapacity(16_000, 64 * GIB, parts))[0] for parts in ((1000,) * 4, (0, 0, 0, 1000)))
    assert scarce < ample


@given(stocks)
def test_a_demand_that_does_not_fit_has_no_score(free: FreeCapacity) -> None:
    demands = DeviceDemands.of(
        [DeviceDemand(310, 1, 2000, GIB), DeviceDemand(1000, 2, 0, 0), DeviceDemand(0, 0, 3000, 30 * GIB)]
    )
    scores = ExpectedFillMeasure(MIX, LINEAR).for_shape(a_shape(), demands).scores(free)
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
