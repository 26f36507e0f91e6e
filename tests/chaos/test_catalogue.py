"""Every fault of the catalogue: the training ends as if nothing had happened, and a hundred tasks follow."""

from __future__ import annotations

import dataclasses
import time

import pytest

from tests.chaos.catalogue import FAULTS, POSTGRES_ONLY
from tests.chaos.conftest import NAMES, SEEDS
from tests.chaos.scene import Scene, uses_of
from tests.chaos.table import Row, Table
from tests.system.overlaps import overlaps

BARRED, BAR_S = ("task", "scheduler", "scheduler_host"), 30
"""Seconds from kill -9 to progress beyond the failure point, above the framework's own start."""
WHOLE = {"kind": "device", "milli": 1000}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost(chaos_airflow: Scene, table: Table, seed: int, fault: str) -> None:
    scene = dataclasses.replace(chaos_airflow, seed=seed, fault=fault, trainings=[])
    if fault in POSTGRES_ONLY and scene.backend != "postgres":
        pytest.skip("SQLite is no process that could be killed")
    training, injury = FAULTS[fault](scene)
    training.finish()
    recovered_s, lost_steps = training.recovery(injury)
    began = time.monotonic()
    noted, lost_tasks = scene.follow_up()
    fresh_s = time.monotonic() - began
    double = overlaps([{**use, **WHOLE} for use in [*noted, *uses_of(scene.trainings)]])
    scene.wait_until(lambda: not scene.still_leased(), "all leases to be freed")
    mixed = [text for one in scene.trainings for text in one.mixed()]
    row = Row(
        fault,
        scene.backend,
        seed,
        found_s=training.found_s(injury, scene.database),
        recovered_s=recovered_s,
        above_start_s=recovered_s - scene.plain_start_s - injury.framework_s,
        lost_steps=lost_steps,
        tries=training.tries(),
        double_leases=len(double),
        leases_left=len(scene.still_leased()),
        lost_tasks=lost_tasks,
        mixed_checkpoints=len(mixed),
        fresh_s=fresh_s,
    )
    table.add(row)
    if fault in BARRED:
        assert row.above_start_s <= BAR_S
    assert double == []
    assert mixed == []
    assert (row.lost_tasks, row.leases_left) == (0, 0)
    assert row.tries == 1, "a fault that is not the task's own has used up a retry"
