import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import RequestError
from hetero_airflow.units import (
    MAX_BYTES,
    ByteRange,
    format_bytes,
    format_bytes_exact,
    parse_bytes,
    parse_duration_s,
    share_to_milli,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1), ("1B", 1), ("1.5KiB", 1536), ("1kb", 1000), ("2Mi", 2 * 2**20), ("1GB", 10**9),
        (" 40 GiB ", 40 * 2**30), ("1024TiB", MAX_BYTES), ("0.1B", 1),
    ],
)  # fmt: skip
def test_sizes_are_read(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "1", "GiB", "-1GiB", "1e3", "1 0GiB", "1XB", "9" * 100, None, 1.5, True, b"1", "0", 0]
)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(RequestError):
        parse_bytes(text)


@given(st.integers(1, MAX_BYTES))
def test_an_exact_size_is_read_back(size: int) -> None:
    assert parse_bytes(format_bytes_exact(size)) == size
    assert abs(parse_bytes(format_bytes(size)) - size) <= size * 0.05 + 1


@given(st.integers(1, MAX_BYTES), st.integers(1, MAX_BYTES))
def test_a_range_is_read_back_and_holds_its_ends(first: int, second: int) -> None:
    low, high = sorted((first, second))
    for held in (ByteRange(low, high), ByteRange(low, None), ByteRange(None, high)):
        assert ByteRange.parse(str(held)) == held
    assert (ByteRange(low, high).holds(low), ByteRange(low, high).holds(high)) == (True, True)
    assert not ByteRange(low, high).holds(low - 1)
    assert not ByteRange(low, high).holds(high + 1)


@pytest.mark.parametrize(
    ("text", "seconds"), [(5, 5), (0.5, 0.5), ("90s", 90), ("1.5h", 5400), ("2d", 172800), (timedelta(minutes=1), 60)]
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1w", 0, -1, math.nan, math.inf, -math.inf, 10**400, -(10**400), True, None, "367d"]
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(RequestError):
        parse_duration_s(text)


@pytest.mark.parametrize(("share", "share_milli"), [(0.5, 500), (1 / 3, 333), (0.0001, 1), (0.9999, 1000)])
def test_a_share_is_at_least_a_thousandth(share: float, share_milli: int) -> None:
    assert share_to_milli(share) == share_milli
