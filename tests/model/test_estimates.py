import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.estimates import MAX_DURATION_S, NO_ESTIMATES, Estimates, Interval

TRAIN = ("dag", "train")
V100, K80, T4 = "nvidia/v100", "nvidia/k80", "nvidia/t4"


def test_all_classes_are_equal_for_an_unknown_task():
    assert NO_ESTIMATES.relative_speeds(TRAIN, frozenset({V100, K80})) == {K80: 1.0, V100: 1.0}
    assert NO_ESTIMATES.relative_speeds(TRAIN, frozenset()) == {}
    partly = Estimates(default_speeds={V100: 1.0})
    assert partly.relative_speeds(TRAIN, frozenset({V100, K80})) == {K80: 1.0, V100: 1.0}


def test_an_unmeasured_class_gets_a_speed_from_the_data_sheets():
    known = Estimates({TRAIN: {V100: 4.0}}, default_speeds={V100: 1.0, K80: 0.25, T4: 9.0})
    assert known.relative_speeds(TRAIN, frozenset({V100, K80})) == {K80: 0.25, V100: 1.0}
    assert known.relative_speeds(TRAIN, frozenset({V100, T4})) == {T4: 1.0, V100: 1.0}, "not faster than a measured one"


def test_a_class_on_which_a_task_cannot_run_has_speed_0():
    known = Estimates({TRAIN: {V100: 4.0, K80: 0.0}}, {TRAIN: Interval(1, 1, 1)})
    assert known.relative_speeds(TRAIN, frozenset({V100, K80})) == {K80: 0.0, V100: 1.0}
    assert known.duration_s(TRAIN, K80) is None
    assert known.remaining_s(TRAIN, K80, 1.0, {}) is None


def test_a_run_ends_as_it_reports_until_that_is_over():
    """Then the lengths of runs decide."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    known = Estimates(
        {TRAIN: {V100: 1.0}}, {TRAIN: Interval(100, 100, 100)}, reported_ends={"lease-1": now + timedelta(seconds=10)}
    )

    def middle(lease_id: str, after_s: float) -> float:
        at = now + timedelta(seconds=after_s)
        return known.lease_remaining_s(lease_id, TRAIN, V100, 40.0 + after_s, {}, at).middle

    assert (middle("lease-1", 0), middle("lease-1", 9)) == (10, 1)
    assert (middle("lease-1", 10), middle("other", 0)) == (pytest.approx(50), pytest.approx(60))


def test_a_reported_end_is_bounded():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    known = Estimates(reported_ends={"lease-1": datetime.max.replace(tzinfo=UTC)})
    assert max(known.lease_remaining_s("lease-1", TRAIN, V100, 0.0, {}, now)) == MAX_DURATION_S


@pytest.mark.parametrize("work", [0.0, 1e-300, 1e300, math.inf])
def test_durations_are_bounded(work):
    known = Estimates({TRAIN: {V100: 1e-9}}, {TRAIN: Interval(work, work, work)})
    assert all(0 <= part <= MAX_DURATION_S for part in known.duration_s(TRAIN, V100))


def test_attained_service_on_other_classes_counts_by_their_speeds():
    known = Estimates({TRAIN: {V100: 2.0, K80: 1.0}}, {TRAIN: Interval(100, 100, 100)})
    assert known.remaining_s(TRAIN, K80, 10.0, {V100: 20.0, "unknown": 5.0}) == pytest.approx((50, 50, 50))


def test_the_remaining_time_is_that_of_runs_that_take_at_least_so_long():
    """Against 200,000 drawn runs."""
    generator = random.Random(3)
    drawn = [math.exp(generator.gauss(math.log(100), math.log(2) / 1.2816)) for _ in range(200_000)]
    remaining = sorted(run - 120 for run in drawn if run > 120)
    expected = [remaining[int(len(remaining) * part)] for part in (0.1, 0.5, 0.9)]
    assert Interval(50, 100, 200).remaining_after(120) == pytest.approx(expected, rel=0.05)


def test_the_rest_of_a_certain_quantity_is_exact():
    certain = Interval(100, 100, 100)
    assert certain.remaining_after(30) == pytest.approx((70, 70, 70))
    assert certain.remaining_after(101) is None


@given(st.floats(1e-3, 1e6), st.floats(1, 100), st.floats(1, 100), st.floats(0, 1e7))
def test_the_remaining_quantiles_are_in_order_and_never_negative(middle, below, above, done):
    remaining = Interval(middle / below, middle, middle * above).remaining_after(done)
    assert remaining is None or 0 <= remaining.low <= remaining.middle <= remaining.high < math.inf
