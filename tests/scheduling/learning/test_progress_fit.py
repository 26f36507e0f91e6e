from __future__ import annotations

import math

import pytest

from hetero_airflow.model.devices.speeds import data_sheet_speed
from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.scheduling.learning import class_speeds
from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.testing import a_run, a_speed

V100, P100, K80, X1 = "nvidia/v100", "nvidia/p100", "nvidia/k80", "acme/x1"
TRAIN, OTHER = ("dag", "train"), ("dag", "other")


def learned(*given, classes=(V100, K80)):
    learner = Learner()
    learner.learn_speeds(speed for speed in given if isinstance(speed, MeasuredSpeed))
    assert learner.learn(run for run in given if not isinstance(run, MeasuredSpeed)) == []
    return learner.estimates(frozenset(classes))


def speed(steps_per_s, on=V100, task=TRAIN, **fields):
    return a_speed(steps_per_s, task=task, device_class=on, **fields)


def run(held_s, on=V100, task=TRAIN, **fields):
    return a_run(task=task, device_class=on, held_s=held_s, **fields)


def relative(estimates, task=TRAIN, classes=(V100, K80)):
    return estimates.relative_speeds(task, frozenset(classes))


def test_reported_speeds_decide_and_not_the_lengths_of_runs():
    """The runs on the K80 are shorter, since their work is less."""
    estimates = learned(speed(4.0), speed(1.0, K80), *[run(1000.0)] * 5, *[run(10.0, K80)] * 5)
    assert relative(estimates) == {V100: 1.0, K80: pytest.approx(0.25, rel=0.05)}


def test_the_work_of_a_reporting_task_is_in_its_steps():
    estimates = learned(speed(4.0), *[run(100.0)] * 9)
    assert estimates.works[TRAIN].middle == pytest.approx(400, rel=0.01)
    assert estimates.duration_s(TRAIN, V100).middle == pytest.approx(100, rel=0.01)
    assert estimates.finished_s == tuple(pytest.approx(100, rel=0.01) for _ in range(9))


def test_a_class_that_was_not_tried_looks_better_by_its_uncertainty():
    estimates = learned(speed(4.0))
    expected = data_sheet_speed(K80) * math.exp(estimates.speed_deviations[TRAIN][K80])
    assert relative(estimates)[K80] == pytest.approx(expected, rel=0.01)
    assert estimates.speed(TRAIN, K80) == pytest.approx(4.0 * data_sheet_speed(K80), rel=0.01)


def test_a_close_class_is_tried_and_then_judged_by_its_speed():
    before = relative(learned(speed(4.0), classes=(V100, P100)), classes=(V100, P100))
    after = relative(learned(speed(4.0), speed(3.0, P100), classes=(V100, P100)), classes=(V100, P100))
    assert before[P100] == 1.0 > before[V100]
    assert after == {V100: 1.0, P100: pytest.approx(0.75, rel=0.05)}


def test_tasks_without_steps_get_the_ratio_of_those_with_steps():
    reporting = [speed(s, on, ("dag", f"task{n}")) for n in range(12) for on, s in ((V100, 3.0), (K80, 1.5))]
    estimates = learned(*reporting, run(100.0, task=OTHER))
    assert relative(estimates, OTHER)[K80] == pytest.approx(0.5, abs=0.07)
    assert estimates.duration_s(OTHER, K80).middle == pytest.approx(200, rel=0.2)
    assert relative(estimates, ("dag", "new"))[K80] == pytest.approx(0.5, abs=0.07)


def test_equal_lengths_of_a_task_without_steps_count_as_its_speed():
    steady = [run(100.0, task=OTHER)] * 30 + [run(110.0, K80, OTHER)] * 30
    assert relative(learned(speed(4.0), *steady), OTHER)[K80] == pytest.approx(100 / 110, abs=0.1)


def test_unequal_lengths_of_a_task_without_steps_say_little():
    mixed = [run(100.0 * 30**n, on, OTHER) for on in (V100, K80) for n in (-1, 0, 1)]
    assert relative(learned(speed(4.0), *mixed), OTHER)[K80] < 2 * data_sheet_speed(K80)


def test_a_class_without_a_data_sheet_is_known_where_a_task_was_measured():
    estimates = learned(speed(4.0), speed(8.0, X1), run(50.0, X1, OTHER))
    assert relative(estimates, classes=(V100, X1)) == {V100: pytest.approx(0.5, rel=0.05), X1: 1.0}
    assert estimates.duration_s(OTHER, X1).middle == pytest.approx(50, rel=0.05)


def test_a_later_measurement_replaces_the_earlier_one():
    assert learned(speed(4.0), speed(5.0)).speed(TRAIN, V100) == pytest.approx(5.0, rel=0.01)


def test_a_task_counts_as_measured_when_it_was_measured_last(monkeypatch):
    monkeypatch.setattr(class_speeds, "MAX_TEACHING_TASKS", 1)
    first, second = (("dag", name) for name in "az")
    pairs = [speed(1.0, K80, first), speed(1.0, V100, second), speed(1.0, K80, second), speed(2.0, V100, first)]
    alone = learned(speed(2.0, V100, first), speed(1.0, K80, first))
    assert relative(learned(*pairs), ("dag", "new")) == pytest.approx(relative(alone, ("dag", "new")))


def test_the_same_measurements_give_the_same_estimates_in_any_order():
    given = [speed(s, on, ("dag", f"task{n}")) for n in range(4) for on, s in ((V100, 3.0 + n), (K80, 1.5))]
    first, second = learned(*given), learned(*reversed(given))
    assert first.speeds.keys() == second.speeds.keys()
    assert all(first.speeds[task] == pytest.approx(second.speeds[task]) for task in first.speeds)
