from datetime import UTC, timedelta

from hetero_airflow.clock import Clock
from hetero_airflow.testing import EPOCH, FakeClock


def test_the_system_clock_is_aware_and_in_utc() -> None:
    assert Clock().now().tzinfo is UTC


def test_the_fake_clock_moves_when_told() -> None:
    clock = FakeClock()
    assert (clock.now(), clock.advance(5), clock.now()) == (EPOCH, EPOCH + timedelta(seconds=5), clock.now())
