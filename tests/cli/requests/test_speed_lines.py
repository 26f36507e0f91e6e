from __future__ import annotations

import math
from datetime import timedelta

from hetero_airflow.cli.requests.explain import explain_report
from hetero_airflow.cli.requests.speed_lines import class_speeds, speed_lines, speeds_json
from hetero_airflow.model.estimates import NO_ESTIMATES
from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_speed, a_worker

TRAIN = ("dag", "train")
V100, K80 = "nvidia/v100", "nvidia/k80"


def known(*measured, classes=(V100, K80)):
    learner = Learner()
    learner.learn_speeds(measured)
    return class_speeds(TRAIN, learner.estimates(frozenset(classes)), measured, classes)


def speed(steps_per_s, on, **fields):
    return a_speed(steps_per_s, task=TRAIN, device_class=on, **fields)


def test_a_task_that_reports_no_steps_has_no_lines():
    assert class_speeds(TRAIN, NO_ESTIMATES, (), (V100,)) == ()
    assert class_speeds(("dag", "other"), NO_ESTIMATES, [speed(2.1, V100)], (V100,)) == ()


def test_measured_classes_are_shown_with_their_steps_error_and_ratio():
    lines = list(speed_lines(known(speed(2.1, V100, deviation=0.05, steps=240), speed(1.05, K80, steps=63))))
    assert lines == [
        "nvidia/v100: learned from 240 steps on this device: 2.1 ± 0.1 steps/s",
        "nvidia/k80: learned from 63 steps on this device: 1.05 ± 0.02 steps/s, 0.5 of the fastest",
    ]


def test_a_class_that_was_not_tried_is_shown_with_its_range():
    first, second = speed_lines(known(speed(2.0, V100)))
    assert first.startswith("nvidia/v100: learned from 120 steps")
    assert (
        second
        == "nvidia/k80: not tried yet: 0.16 to 0.65 steps/s by other tasks and the data sheets, 0.16 of the fastest"
    )


def test_a_speed_that_nothing_else_resembles_is_shown_with_what_it_counts():
    lines = list(speed_lines(known(speed(1.0, V100), speed(1e12, K80))))
    assert "it counts as" in "".join(lines)


def test_the_json_has_the_values():
    (value, _) = speeds_json(known(speed(2.0, V100)))["speeds"]
    assert (value["device_class"], value["steps"], round(value["steps_per_s"], 3)) == (V100, 120, 2.0)
    assert all(not isinstance(part, float) or math.isfinite(part) for part in value.values())


def test_the_report_has_a_row_of_speeds(render):
    store = MemoryStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("train"))], EPOCH)
    history = store.request_history("dag", "run", "train")
    ends_at = EPOCH + timedelta(minutes=90)
    text = render(explain_report(history, {}, EPOCH, None, known(speed(2.1, V100, steps=240)), ends_at))
    assert "Speed" in text
    assert "learned from 240 steps on this device" in text
    assert "Ends" in text
    assert "2026-01-01 01:30:00 UTC, in 1 h 30 min, by the steps that it reports" in text
