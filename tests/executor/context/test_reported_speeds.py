"""Speeds that running tasks report reach the store and the estimates."""

import json
import math
from datetime import timedelta

import pytest

from hetero_airflow.contract.progress import Progress, ProgressPhase
from hetero_airflow.contract.state_keys import PROGRESS, LeaseProgress, ReportedSpeed
from hetero_airflow.executor.context import reported_speeds
from hetero_airflow.executor.context.reported_speeds import FIRST_S, OFTEN_S
from hetero_airflow.model.estimates import MAX_DURATION_S, MAX_SPEED

A100 = "nvidia/a100-sxm4-40gb"


@pytest.fixture
def reports(monkeypatch):
    """Task → its report, and the tasks that were read."""
    texts, reads = {}, []

    def read(keys, name):
        reads.append(sorted(keys))
        assert name == PROGRESS
        return {key: texts[key] for key in keys if key in texts}

    monkeypatch.setattr(reported_speeds, "read_states", read)
    return texts, reads


@pytest.fixture
def running(bench):
    request_id = bench.start("train")
    return bench, bench.lease(request_id)


def wait(bench, seconds):
    bench.beat(5.0, times=round(seconds / 5))


def report(bench, lease, steps_per_s=2.0, seconds=60.0, total=None, **changes) -> str:
    now = bench.clock.now()
    speed = ReportedSpeed(steps_per_s=steps_per_s, deviation=0.02, steps=round(steps_per_s * seconds), seconds=seconds)
    progress = Progress(step=5, at=now, phase=ProgressPhase.STEPPING, total=total)
    value = LeaseProgress(lease_id=lease.id, progress=progress, reported_at=now, speed=speed)
    return json.dumps(json.loads(value.model_dump_json()) | changes)


def estimated(bench) -> float | None:
    return bench.dispatcher.context.estimates.speed(("dag", "train"), A100)


def test_a_reported_speed_is_learned_at_once_and_kept(running, reports):
    bench, lease = running
    reports[0]["train"] = report(bench, lease)
    wait(bench, FIRST_S + 10)
    assert estimated(bench) == pytest.approx(2.0)
    (speed,) = bench.store.speeds()[1]
    assert (speed.task, speed.device_class, speed.steps, speed.seconds) == (("dag", "train"), A100, 120, 60.0)


@pytest.mark.parametrize(("total", "remaining_s"), [(1000, 994 / 2), (6, 0), (1, 0), (10**400, MAX_DURATION_S)])
def test_a_run_that_says_how_many_steps_there_are_has_an_expected_end(running, reports, total, remaining_s):
    bench, lease = running
    reports[0]["train"] = report(bench, lease, total=total)
    reported_at = bench.clock.now()
    wait(bench, FIRST_S + 10)
    ends = bench.dispatcher.context.estimates.reported_ends
    assert ends == {lease.id: reported_at + timedelta(seconds=remaining_s)}


def test_a_report_from_the_end_of_time_stops_nothing(running, reports):
    bench, lease = running
    value = json.loads(report(bench, lease, total=1000))
    value["progress"]["at"] = "9999-12-31T23:59:59Z"
    reports[0]["train"] = json.dumps(value)
    wait(bench, FIRST_S + 10)
    (end,) = bench.dispatcher.context.estimates.reported_ends.values()
    assert end < bench.clock.now() + timedelta(seconds=497)


def test_a_task_is_read_often_until_its_speed_is_known_and_then_seldom(running, reports):
    bench, lease = running
    wait(bench, FIRST_S - 5)
    assert reports[1] == []
    wait(bench, 5 + 3 * OFTEN_S)
    assert reports[1] == [["train"]] * 4
    reports[0]["train"] = report(bench, lease)
    wait(bench, 600)
    assert len(reports[1]) < 10


def test_the_report_of_an_earlier_lease_teaches_nothing(running, reports):
    bench, lease = running
    reports[0]["train"] = report(bench, lease, lease_id="lease-0")
    wait(bench, FIRST_S + 10)
    assert (estimated(bench), bench.store.speeds()[1]) == (None, ())


@pytest.mark.parametrize(
    "speed",
    [
        None,
        {"steps_per_s": math.nan, "deviation": 0.1, "steps": 3, "seconds": 60.0},
        {"steps_per_s": math.inf, "deviation": 0.1, "steps": 3, "seconds": 60.0},
        {"steps_per_s": -1.0, "deviation": 0.1, "steps": 3, "seconds": 60.0},
        {"steps_per_s": 0, "deviation": 0.1, "steps": 3, "seconds": 60.0},
        {"steps_per_s": 2.0, "deviation": 0.1, "steps": -3, "seconds": 60.0},
        {"steps_per_s": 2.0, "deviation": 0.1, "steps": 3, "seconds": "long"},
        "fast",
    ],
)
def test_an_impossible_report_teaches_nothing(running, reports, speed):
    bench, lease = running
    reports[0]["train"] = report(bench, lease, speed=speed)
    wait(bench, FIRST_S + 10)
    assert (estimated(bench), bench.store.speeds()[1]) == (None, ())


def test_an_absurd_speed_is_bounded(running, reports):
    bench, lease = running
    reports[0]["train"] = report(bench, lease, 1e18)
    wait(bench, FIRST_S + 10)
    assert estimated(bench) == pytest.approx(MAX_SPEED)


def test_a_state_store_that_fails_is_asked_again(running, reports, monkeypatch, caplog):
    bench, lease = running
    works = reported_speeds.read_states

    def fail(keys, name):
        raise ConnectionError("refused")

    monkeypatch.setattr(reported_speeds, "read_states", fail)
    reports[0]["train"] = report(bench, lease)
    wait(bench, FIRST_S + 10)
    assert ("can't be read" in caplog.text, estimated(bench)) == (True, None)
    monkeypatch.setattr(reported_speeds, "read_states", works)
    wait(bench, 10)
    assert estimated(bench) == pytest.approx(2.0)


def test_a_clock_that_is_set_back_delays_reports_by_its_first_time_at_most(running, reports):
    bench, lease = running
    wait(bench, FIRST_S + 10)
    bench.clock.advance(-timedelta(days=1).total_seconds())
    reports[0]["train"] = report(bench, lease)
    wait(bench, 10)
    assert estimated(bench) == pytest.approx(2.0)
