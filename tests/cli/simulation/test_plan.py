from __future__ import annotations

from hetero_airflow.cli.simulation.plan import plan_json, plan_report
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.planned_tasks import PlannedTask
from hetero_airflow.simulator.rehearsal import Rehearsal, rehearse
from hetero_airflow.testing import EPOCH, a_worker

GANG = "far.train[0-3] (planned)"
WHY = (
    f"count: asked all 4 of gang {GANG}, 2 × gpu each, found room for 3 at the same time, even when all workers are "
    "idle"
)


def a_rehearsal(least: int) -> Rehearsal:
    """A gang of four on workers with room for three."""
    request = DeviceRequest.parse("gpu:2")
    ranks = [
        PlannedTask(f"train[{n}]", ("far", "train"), request, gang=GANG, gang_size=4, least=least) for n in range(4)
    ]
    workers = (a_worker("worker-a"), a_worker("worker-b"), a_worker("worker-c"))
    return rehearse(Snapshot(1, workers), ranks, Fifo(), EPOCH)


def test_each_rank_of_a_gang_has_a_row_and_what_it_goes_on_without_is_said(render):
    told = render(plan_report(a_rehearsal(least=2), "far", "fifo", "the workers as they are now"), width=240)
    rows = [line.split()[:6] for line in told.splitlines() if line.startswith("train[")]
    assert rows == [[f"train[{n}]", "2", "×", "gpu", f"worker-{name}", "0s"] for n, name in enumerate("abc")]
    assert f"NOTE train[0]: its gang is planned with 3 of 4 ranks: {WHY}" in told.splitlines()
    assert told.endswith("Nothing would go wrong")


def test_why_a_gang_is_never_whole_is_said_of_each_rank(render):
    told = render(plan_report(a_rehearsal(least=4), "far", "fifo", "the workers as they are now"), width=240)
    misses = [line for line in told.splitlines() if line.startswith("MISS")]
    assert misses == [f"MISS train[{n}]: its gang of 4 can't be placed: {WHY}" for n in range(4)]


def test_notes_are_told_as_json_too():
    text = f"its gang is planned with 3 of 4 ranks: {WHY}"
    assert plan_json(a_rehearsal(least=2), "far", "fifo")["notes"] == [{"id": "train[0]", "text": text}]
