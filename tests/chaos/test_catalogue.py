"""Every fault of the catalogue: the training ends with the same result as without it, and a hundred tasks follow."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.chaos.catalogue import ALONE, FAULTS, POSTGRES_ONLY
from tests.chaos.conftest import BACKEND, NAMES, SEEDS
from tests.chaos.scene import Injury, Scene, Training, uses_of
from tests.chaos.table import Row, Table
from tests.system.overlaps import overlaps

BARRED, BAR_S = ("task", "scheduler", "scheduler_host"), 30
"""Seconds from kill -9 to progress beyond the failure point, above the framework's own start."""
WHOLE = {"kind": "device", "milli": 1000}


TOGETHER = 10
"""How many trainings run side by side under a fault that affects one training. One on SQLite: with more, Airflow's API
finds its database locked."""


def cases() -> list[Any]:
    """Each fault with the seeds that run at once."""
    params = []
    for fault in (name for name in NAMES if name != "sequence"):
        size = 1 if fault in ALONE or BACKEND == "sqlite" else TOGETHER
        for first in range(0, len(SEEDS), size):
            seeds = SEEDS[first : first + size]
            params.append(pytest.param(fault, seeds, id=f"{fault}-{'-'.join(map(str, seeds))}"))
    return params


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("fault", "seeds"), cases())
def test_nothing_is_lost(chaos_airflow: Scene, table: Table, seeds: list[int], fault: str) -> None:
    scene = chaos_airflow
    if fault in POSTGRES_ONLY and scene.backend != "postgres":
        pytest.skip("SQLite is no process that could be killed")
    scenes = [dataclasses.replace(scene, seed=seed, fault=fault, trainings=[]) for seed in seeds]
    with ThreadPoolExecutor(len(scenes)) as pool:
        struck = list(pool.map(FAULTS[fault], scenes))
    for training, injury in struck:
        training.wait_for_recovery(injury)
    began = time.monotonic()
    noted, lost_tasks = scene.follow_up()
    fresh_s = time.monotonic() - began
    trainings = [training for scene in scenes for training in scene.trainings]
    for training in trainings:
        training.finish()
    double = overlaps([{**use, **WHOLE} for use in [*noted, *uses_of(trainings)]])
    scene.airflow.wait_until_freed()
    rows = [
        row_of(scene, *wounded, double_leases=len(double), lost_tasks=lost_tasks, fresh_s=fresh_s)
        for scene, wounded in zip(scenes, struck, strict=True)
    ]
    for row in rows:
        table.add(row)
    assert [text for training in trainings for text in training.mixed()] == []
    for row in rows:
        if fault in BARRED:
            assert row.above_start_s <= BAR_S
        assert (row.double_leases, row.lost_tasks, row.leases_left) == (0, 0, 0)
        assert row.tries == 1, "a fault that is not the task's own has used up a retry"


def row_of(scene: Scene, training: Training, injury: Injury, **figures: Any) -> Row:
    """The row of the fault and one seed."""
    recovery = training.recovery(injury)
    assert recovery is not None
    return Row(
        scene.fault,
        scene.backend,
        scene.seed,
        found_s=training.found_s(injury, scene.database),
        recovered_s=recovery[0],
        above_start_s=recovery[0] - scene.plain_start_s - injury.framework_s,
        lost_steps=recovery[1],
        tries=training.tries(),
        leases_left=len(scene.still_leased()),
        mixed_checkpoints=sum(len(training.mixed()) for training in scene.trainings),
        **figures,
    )
