import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.contract.progress import Progress, ProgressPhase
from hetero_airflow.model.run import TimeShares
from hetero_airflow.supervisor.speed_meter import ENOUGH_S, SpeedMeter
from hetero_airflow.testing import EPOCH


def progress(step, second, phase=ProgressPhase.STEPPING, saved_step=None) -> Progress:
    return Progress(step=step, at=EPOCH + timedelta(seconds=second), phase=phase, saved_step=saved_step)


def metered(*seen: Progress | None) -> SpeedMeter:
    meter = SpeedMeter()
    for each in seen:
        meter.see(each)
    return meter


def steady(steps_per_s=2.0, begin_s=0, end_s=100, first=0, **fields):
    return [progress(first + round(steps_per_s * (s - begin_s)), s, **fields) for s in range(begin_s, end_s + 1)]


def test_a_steady_run_has_a_speed_after_a_minute_of_steps():
    assert metered(*steady(end_s=int(ENOUGH_S) - 1)).speed() is None
    speed = metered(*steady(end_s=int(ENOUGH_S))).speed()
    assert (speed.steps_per_s, speed.deviation, speed.steps, speed.seconds) == (pytest.approx(2.0), 0.0, 120, 60.0)


def test_start_up_and_restores_do_not_count():
    """Ten minutes of start, then steps from a checkpoint."""
    starting = [progress(None, s, ProgressPhase.STARTING) for s in range(0, 600, 10)]
    speed = metered(None, *starting, *steady(begin_s=600, end_s=700, first=5000)).speed()
    assert (speed.steps_per_s, speed.seconds) == (pytest.approx(2.0), 100.0)


def test_a_stall_does_not_count():
    stalled = [*steady(end_s=50), *steady(begin_s=350, end_s=400, first=101)]
    assert metered(*stalled).speed().steps_per_s == pytest.approx(2.0)


def test_a_clock_that_jumps_ahead_changes_nothing():
    jumped = [*steady(end_s=50), *steady(begin_s=86_400, end_s=86_450, first=101)]
    speed = metered(*jumped).speed()
    assert speed.steps_per_s == pytest.approx(2.0)
    assert speed.seconds < 1000


def test_a_clock_that_jumps_back_and_a_step_that_jumps_back_begin_anew():
    clock = [*steady(begin_s=1000, end_s=1040), *steady(begin_s=0, end_s=40, first=80)]
    steps = [*steady(end_s=40, first=1000), *steady(begin_s=41, end_s=81)]
    for seen in (clock, steps):
        speed = metered(*seen).speed()
        assert (speed.steps_per_s, speed.steps, speed.seconds) == (pytest.approx(2.0), 160, 80.0)


def test_saves_do_not_count_where_other_parts_are_known():
    """Each 20 s, a save stops the steps for 10 s."""
    seen, step, second = [], 0, 0
    for save in range(6):
        for _ in range(20):
            seen.append(progress(step, second, saved_step=save))
            step, second = step + 2, second + 1
        second += 10
    assert metered(*seen).speed().steps_per_s == pytest.approx(2.0)


def test_a_task_that_always_saves_has_the_speed_with_its_saves():
    seen = [progress(2 * s, s, saved_step=s) for s in range(0, 101, 5)]
    assert metered(*seen).speed().steps_per_s == pytest.approx(2.0)


def test_slow_steps_are_measured_from_step_to_step():
    seen = [progress(second // 40, second - second % 40) for second in range(0, 200, 3)]
    speed = metered(*seen).speed()
    assert (speed.steps_per_s, speed.steps) == (pytest.approx(1 / 40), 4)


def test_noise_becomes_the_deviation():
    generator = random.Random(1)
    second, seen = 0.0, []
    for step in range(400):
        seen.append(progress(step, second))
        second += generator.uniform(0.2, 0.8)
    speed = metered(*seen).speed()
    assert speed.steps_per_s == pytest.approx(2.0, rel=0.1)
    assert 0.001 < speed.deviation < 0.1


def test_the_end_of_a_run_adds_nothing():
    done = [*steady(), progress(200, 400, ProgressPhase.STOPPING), progress(200, 500, ProgressPhase.DONE)]
    assert metered(*done).speed() == metered(*steady()).speed()


@given(st.lists(st.tuples(st.integers(0, 10**400), st.floats(0, 1e6), st.sampled_from(ProgressPhase)), max_size=60))
def test_any_progress_gives_a_finite_speed_or_none(seen):
    speed = metered(*(progress(step, second, phase) for step, second, phase in seen)).speed()
    assert speed is None or 0 < speed.steps_per_s < float("inf")


def test_the_speed_says_what_the_time_was_spent_on():
    shares = TimeShares(data=0.3, compute=0.6, save=0.1)
    steps = [each.model_copy(update={"shares": shares}) for each in steady()]
    assert (metered(*steady()).speed().shares, metered(*steps).speed().shares) == (None, shares)
