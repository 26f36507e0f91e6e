"""What parts of an accelerator are worth."""

from __future__ import annotations

import pytest

from hetero_airflow.policies.core.share_prices import share_prices
from tests.matching.packing.test_fragmentation import a_mix


def test_larger_parts_are_worth_more_and_a_whole_device_is_worth_one() -> None:
    prices = share_prices(a_mix(("gpu:0.7", 0, 0.3), ("gpu:0.3", 0, 0.4), ("gpu:0.45", 0, 0.3)))
    assert len(prices) == 1001
    assert list(prices) == sorted(prices)
    assert (prices[0], prices[299], prices[1000]) == (0.0, 0.0, 1.0)


def test_a_share_that_fits_where_nothing_else_does_costs_nothing() -> None:
    prices = share_prices(a_mix(("gpu:0.81", 0, 0.9), ("gpu:0.16", 0, 0.1)))
    assert (prices[160], prices[190], prices[810]) == pytest.approx((0.0, 0.0, 1.0))


def test_shares_of_which_two_make_a_device_cost_half_of_one() -> None:
    assert share_prices(a_mix(("gpu:0.47", 0, 1.0)))[470] == pytest.approx(0.5)


def test_without_shares_only_whole_devices_are_worth_something() -> None:
    assert share_prices(a_mix(("gpu:2", 0, 1.0))) == (0.0,) * 1000 + (1.0,)
