"""Speeds of device classes, as they are fitted, and as a learner knows them from reported steps."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.model.devices.speeds import data_sheet_speed
from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.scheduling.learning import class_speeds
from hetero_airflow.scheduling.learning.class_speeds import (
    MAX_ERROR,
    MAX_TEACHING_TASKS,
    SHEET_DEVIATION,
    fit_class_speeds,
)
from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.testing import a_run, a_speed

V100, P100, K80, X1 = "nvidia/v100", "nvidia/p100", "nvidia/k80", "acme/x1"
CLASSES = (V100, P100, K80)
TRAIN = ("dag", "train")
EXACT = 0.02


def named(number: int) -> tuple[str, str]:
    return "dag", f"task{number}"


def sheet(name: str) -> float:
    return math.log(data_sheet_speed(name) or 1.0)


def measured(**by_class: float) -> dict[str, tuple[float, float]]:
    return {f"nvidia/{name}": (log, EXACT) for name, log in by_class.items()}


def difference(model, row, first, second) -> float:
    logs = model.speeds({TRAIN: row})[TRAIN].logs
    return logs[first] - logs[second]


def deviation(model, row, name) -> float:
    return model.speeds({TRAIN: row})[TRAIN].deviations[name]


def test_without_measurements_the_data_sheets_decide():
    model = fit_class_speeds({}, CLASSES)
    assert model.default_speeds() == {name: pytest.approx(data_sheet_speed(name)) for name in CLASSES}


def test_one_measured_class_gives_the_unit_and_no_ratio():
    model = fit_class_speeds({named(1): measured(k80=7.0)}, CLASSES)
    assert difference(model, measured(k80=-3.0), V100, K80) == pytest.approx(sheet(V100) - sheet(K80))
    assert model.speeds({TRAIN: measured(k80=-3.0)})[TRAIN].logs[K80] == pytest.approx(-3.0)
    assert deviation(model, measured(k80=-3.0), V100) == pytest.approx(SHEET_DEVIATION * math.sqrt(2))


def test_measured_classes_keep_their_speeds():
    model = fit_class_speeds({}, CLASSES)
    row = measured(v100=1.0, p100=0.9, k80=0.5)
    assert model.speeds({TRAIN: row})[TRAIN].logs == {name: pytest.approx(row[name][0], abs=0.02) for name in CLASSES}
    assert all(deviation(model, row, name) < 0.05 for name in CLASSES)


def test_tasks_on_several_classes_teach_the_ratio_of_a_new_task():
    taught = {named(n): measured(v100=float(n), k80=n - 0.7) for n in range(40)}
    before, after = fit_class_speeds({}, CLASSES), fit_class_speeds(taught, CLASSES)
    row = measured(v100=2.0)
    assert difference(before, row, V100, K80) > 1.5
    assert difference(after, row, V100, K80) == pytest.approx(0.7, abs=0.1)
    assert deviation(after, row, K80) < 0.5 * deviation(before, row, K80)


def test_classes_that_go_together_are_learned_together():
    """Where tasks that are slow on K80 are slow on P100 too, a measurement on one moves the other."""
    generator = random.Random(3)
    taught = {}
    for n in range(60):
        common = generator.gauss(0, 0.8)
        taught[named(n)] = measured(v100=0.0, p100=-1.0 + common, k80=-2.0 + common + generator.gauss(0, 0.1))
    model = fit_class_speeds(taught, CLASSES)
    fast, slow = measured(v100=0.0, p100=-0.2), measured(v100=0.0, p100=-1.8)
    assert difference(model, fast, K80, V100) - difference(model, slow, K80, V100) == pytest.approx(1.6, abs=0.3)


def test_the_order_of_tasks_and_their_units_change_nothing():
    taught = {named(n): measured(v100=0.1 * n, k80=-0.01 * n * n) for n in range(8)}
    moved = {
        task: {name: (log + 9.0 * number, sd) for name, (log, sd) in row.items()}
        for number, (task, row) in enumerate(reversed(taught.items()))
    }
    first, second = fit_class_speeds(taught, CLASSES), fit_class_speeds(moved, CLASSES)
    assert first.default_speeds() == pytest.approx(second.default_speeds())
    assert deviation(first, measured(v100=0.0), K80) == pytest.approx(deviation(second, measured(v100=0.0), K80))


def test_of_many_tasks_those_that_were_measured_last_teach():
    old = {("z", f"task{n}"): measured(v100=0.0, k80=-2.0) for n in range(MAX_TEACHING_TASKS)}
    new = {("a", f"task{n}"): measured(v100=0.0, k80=-0.5) for n in range(MAX_TEACHING_TASKS)}
    assert difference(fit_class_speeds(old | new, CLASSES), measured(v100=0.0), V100, K80) == pytest.approx(
        0.5, abs=0.1
    )


def test_a_class_without_a_data_sheet_is_learned_from_tasks():
    taught = {named(n): {V100: (0.0, EXACT), X1: (1.0, EXACT)} for n in range(15)}
    assert difference(fit_class_speeds(taught, CLASSES), measured(v100=0.0), X1, V100) == pytest.approx(1.0, abs=0.15)


def test_an_absurd_report_changes_other_tasks_little():
    taught = {named(n): measured(v100=1.0, k80=0.0) for n in range(10)}
    honest = fit_class_speeds(taught, CLASSES)
    hostile = fit_class_speeds(taught | {("evil", "task"): measured(v100=0.0, k80=math.log(1e18))}, CLASSES)
    row = measured(v100=1.0)
    assert abs(difference(honest, row, K80, V100) - difference(hostile, row, K80, V100)) < 0.25


def test_an_absurd_report_is_bounded_for_its_own_task():
    model = fit_class_speeds({}, CLASSES)
    absurd = difference(model, measured(v100=0.0, k80=math.log(1e18)), K80, V100)
    assert absurd <= sheet(K80) - sheet(V100) + MAX_ERROR + 1e-9


def test_a_vague_measurement_says_less():
    model = fit_class_speeds({}, CLASSES)
    vague = {V100: (0.0, EXACT), K80: (0.0, 2.0)}
    assert difference(model, vague, V100, K80) > 0.8 * (sheet(V100) - sheet(K80))


speeds = st.floats(-45, 45)
rows = st.dictionaries(st.sampled_from([*CLASSES, X1]), st.tuples(speeds, st.floats(0, 5)), min_size=1)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.integers(0, 9).map(named), rows, max_size=8))
def test_every_speed_is_finite(tasks):
    model = fit_class_speeds(tasks, CLASSES)
    for known in model.speeds(tasks).values():
        assert all(math.isfinite(log) for log in known.logs.values())
        assert all(0 <= sd < 20 for sd in known.deviations.values())
    assert all(0 < speed < math.inf for speed in model.default_speeds().values())


def test_predictions_improve_on_the_data_sheets_by_half():
    """Tasks with true speeds off the data sheets by class and by task: the error of unseen pairs shrinks."""
    generator = random.Random(5)
    by_class = {V100: 0.0, P100: -0.9, K80: 0.5}
    truth = {
        named(n): {name: sheet(name) + by_class[name] + generator.gauss(0, 0.2) for name in CLASSES} for n in range(40)
    }
    seen = {task: {name: (row[name], EXACT) for name in CLASSES[: 1 + number % 3]} for number, (task, row) in
            enumerate(sorted(truth.items()))}  # fmt: skip

    def error(model) -> float:
        known = model.speeds(seen)
        return statistics.median(abs(known[task].logs[K80] - truth[task][K80]) for task in truth if len(seen[task]) < 3)

    assert error(fit_class_speeds(seen, CLASSES)) < 0.5 * error(fit_class_speeds({}, CLASSES))


OTHER = ("dag", "other")


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
