"""Reported speeds in every store."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from hetero_airflow.store.speeds.records import LeaseSpeed
from hetero_airflow.testing import EPOCH, a_speed

MINUTE = timedelta(minutes=1)
A100, T4 = "nvidia/a100", "nvidia/t4"


def report(lease_id="lease-1", steps_per_s=2.0, seconds=60.0, on=A100, **fields) -> LeaseSpeed:
    measured = a_speed(steps_per_s, seconds=seconds, steps=round(steps_per_s * seconds), device_class=on, **fields)
    return LeaseSpeed(lease_id, measured)


def test_a_report_counts_only_with_what_is_new(store):
    for _ in range(3):
        store.add_speeds([report(seconds=60.0)], EPOCH)
    store.add_speeds([report(seconds=90.0)], EPOCH)
    store.add_speeds([report(seconds=80.0)], EPOCH)
    (speed,) = store.speeds()[1]
    assert (speed.steps, speed.seconds) == (180, 90.0)


def test_several_leases_of_a_task_add_up(store):
    store.add_speeds([report("lease-1", 2.0), report("lease-2", 4.0), report("lease-3", 8.0, on=T4)], EPOCH)
    first, second = store.speeds()[1]
    assert (first.device_class, first.steps, first.seconds) == (A100, 360, 120.0)
    assert first.log_speed == pytest.approx(math.log(math.sqrt(8)))
    assert first.deviation > 0.3, "the runs differ"
    assert second == report("lease-3", 8.0, on=T4).measured


def test_the_newest_reported_end_of_each_lease_is_kept_until_it_is_over(store):
    ends = {name: EPOCH + n * MINUTE for n, name in enumerate(("lease-1", "lease-2", "lease-3"), 5)}
    for lease_id, end in ends.items():
        store.add_speeds([report(lease_id, ends={lease_id: end})], EPOCH)
    store.add_speeds([report("lease-1", seconds=90.0, ends={"lease-1": EPOCH + 9 * MINUTE})], EPOCH + MINUTE)
    (speed,) = store.speeds()[1]
    assert speed.ends == ends | {"lease-1": EPOCH + 9 * MINUTE}
    store.add_speeds([report("lease-3", seconds=90.0)], EPOCH + 6 * MINUTE)
    (speed,) = store.speeds()[1]
    assert speed.ends == {"lease-1": EPOCH + 9 * MINUTE, "lease-3": ends["lease-3"]}


def test_only_what_changed_since_is_read(store):
    store.add_speeds([report(on=A100)], EPOCH)
    sequence, _ = store.speeds()
    store.add_speeds([report(on=T4)], EPOCH)
    later, (speed,) = store.speeds(sequence)
    assert (later > sequence, speed.device_class) == (True, T4)


def test_speeds_that_were_long_not_measured_are_deleted(store):
    store.add_speeds([report(on=A100)], EPOCH)
    store.add_speeds([report(on=T4)], EPOCH + 2 * MINUTE)
    store.prune(EPOCH + MINUTE)
    assert [speed.device_class for speed in store.speeds()[1]] == [T4]
