from datetime import timedelta

import pytest

from hetero_airflow.model.estimates import USAGE_HALF_LIFE_S, decayed
from hetero_airflow.model.run import RunEnd
from hetero_airflow.scheduling.learning.learner import Learner, PastUse
from hetero_airflow.testing import EPOCH, a_run

HALF_LIFE = timedelta(seconds=USAGE_HALF_LIFE_S)


def test_use_is_kept_by_dag_and_class_and_halves_with_time():
    past = PastUse()
    past.add("a", {"x": 80.0, "y": 8.0}, EPOCH)
    past.add("b", {"x": 4.0}, EPOCH + HALF_LIFE)
    past.add("a", {"x": 1.0}, EPOCH + 2 * HALF_LIFE)
    assert past.at == EPOCH + 2 * HALF_LIFE
    assert past.device_s() == {"a": {"x": 21.0, "y": 2.0}, "b": {"x": 2.0}}


def test_the_order_of_ends_changes_nothing():
    late, early = PastUse(), PastUse()
    for past, hours in ((late, (30, 2)), (early, (2, 30))):
        for hour in hours:
            past.add("a", {"x": 10.0 * hour}, EPOCH + timedelta(hours=hour))
    assert late.device_s()["a"]["x"] == pytest.approx(early.device_s()["a"]["x"])


def test_future_ends_do_not_grow():
    assert decayed(5.0, EPOCH + HALF_LIFE, EPOCH) == 5.0


def test_a_learner_counts_the_use_of_every_run_once():
    learner = Learner()
    ends = [(RunEnd.PAUSED, "r1", 10.0), (RunEnd.FINISHED, "r1", 20.0), (RunEnd.FAILED, "r2", 5.0)]
    runs = [
        a_run(sequence=n, request_id=name, end=end, held_s=held_s, devices=2, device_class="x")
        for n, (end, name, held_s) in enumerate(ends, start=1)
    ]
    learner.learn(runs)
    known = learner.estimates(frozenset({"x"}))
    assert (known.used_device_s, known.used_at) == ({"dag": {"x": 70.0}}, EPOCH)
