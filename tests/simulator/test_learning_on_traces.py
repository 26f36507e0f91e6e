"""Learned estimates of Gavel's job types, compared with the measurements."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.simulator.traces.gavel import CLASSES, read_speeds
from hetero_airflow.testing import a_run

WORK = 10_000.0


@pytest.fixture(scope="module")
def truth(public_traces) -> dict[tuple[str, str], dict[str, float]]:
    """Task → device class → seconds, for the job types that were measured on one device of each model."""
    table = read_speeds(public_traces / "gavel").together
    whole = {kind: row for (kind, gpus), row in table.items() if gpus == 1 and all(row.get(c, 0) > 0 for c in CLASSES)}
    return {("gavel", kind): {f"nvidia/{c}": WORK / row[c] for c in CLASSES} for kind, row in sorted(whole.items())}


def measured_runs(truth, tasks, classes, generator):
    return [
        a_run(task=task, device_class=name, held_s=truth[task][name] * math.exp(generator.gauss(0, 0.1)))
        for task in tasks
        for name in classes
        for _ in range(5)
    ]


def off_by(truth, runs, tasks, classes) -> float:
    """The median factor between expectation and measurement."""
    learner = Learner()
    assert learner.learn(runs) == []
    estimates = learner.estimates(frozenset(next(iter(truth.values()))))
    ratios = [
        math.log(estimates.duration_s(task, name).middle / truth[task][name]) for task in tasks for name in classes
    ]
    return math.exp(statistics.median(map(abs, ratios)))


def test_more_runs_bring_estimates_closer(truth):
    generator = random.Random(2)
    tasks, (v100, *other_classes) = list(truth), [f"nvidia/{c}" for c in CLASSES]
    seen, unseen = tasks[::2], tasks[1::2]
    on_one = measured_runs(truth, tasks, [v100], generator)
    by_sheets = off_by(truth, on_one, unseen, other_classes)
    by_others = off_by(truth, on_one + measured_runs(truth, seen, other_classes, generator), unseen, other_classes)
    by_runs = off_by(truth, on_one + measured_runs(truth, seen, other_classes, generator), seen, other_classes)
    assert 1 < by_runs < 1.1 < by_others < by_sheets < 2
