"""The clock of a host is set forward or back while tasks run on it.

The clock is a port, so the jump is made there: a real process can't be given another time without a library that is
loaded before it.
"""

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.checkpoints.loading import load_latest, read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import claim_place, publish
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.supervisor.hang_watch import HangWatch
from hetero_airflow.testing import EPOCH, FakeClock, a_worker
from tests.executor.conftest import Bench

HOUR_S = 3600.0
JUMPS = [HOUR_S, -HOUR_S, 30 * 86400.0, -30 * 86400.0]


def running() -> tuple[Bench, str]:
    """Start a task on both devices of the worker, and let another one wait. Returns the id of the first one's lease."""
    bench = Bench()
    bench.store.record([WorkerSeen(a_worker())], EPOCH - timedelta(seconds=1))
    request_id = bench.hold("a", "gpu:2")
    bench.beat()
    bench.run(request_id)
    bench.hold("b", "gpu:2")
    bench.beat(6)
    return bench, bench.lease(request_id).id


def see(bench: Bench) -> None:
    """Send a heartbeat of the task, with the clock's current time."""
    bench.tasks.rows = {
        id_: TaskProcess(row.state, row.pid, row.hostname, row.pid and bench.clock.now())
        for id_, row in bench.tasks.rows.items()
    }


@given(st.lists(st.sampled_from([*JUMPS, 1.0, 7.0, 20.0]), max_size=12))
def test_a_task_that_runs_keeps_its_devices_whatever_the_clock_says(jumps: list[float]) -> None:
    bench, lease_id = running()
    for seconds in jumps:
        bench.clock.advance(seconds)
        see(bench)
        bench.beat(1)
        bench.beat(1)
        assert [lease.id for lease in bench.store.snapshot().leases] == [lease_id]
        assert (bench.started, bench.reports, bench.engine.signals) == (["a"], [], [])
    bench.beat(25)
    assert bench.store.snapshot().leases[0].state is LeaseState.ACTIVE


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_task_that_is_lost_is_found_in_time_and_the_next_one_starts(jump_s: float) -> None:
    bench, _ = running()
    bench.engine.alive.clear()
    bench.beat(6)
    bench.clock.advance(jump_s)
    for _ in range(20):
        bench.beat(1)
    assert "b" in bench.started


@pytest.mark.parametrize("jump_s", JUMPS)
def test_processes_that_outlive_their_task_are_killed_in_time(jump_s: float) -> None:
    bench, lease_id = running()
    bench.end("a")
    bench.beat(1)
    bench.clock.advance(jump_s)
    for _ in range(8):
        bench.beat(1)
    assert bench.engine.signals[:2] == [(lease_id, signal.SIGTERM), (lease_id, signal.SIGKILL)]


@pytest.mark.parametrize("jump_s", JUMPS)
def test_leases_go_on_to_be_renewed(jump_s: float) -> None:
    bench, _ = running()
    bench.clock.advance(jump_s)
    for _ in range(30):
        bench.beat(1)
    assert bench.store.snapshot().leases[0].expires_at > bench.clock.now()


@pytest.mark.parametrize("jump_s", [-HOUR_S, -30 * 86400.0])
def test_a_task_that_hangs_is_found_after_the_clock_was_set_back(jump_s: float) -> None:
    clock = FakeClock()
    watch = HangWatch(60, cpu_s=lambda: 0.0, utilization=lambda: None)
    watch.check(None, clock.now())
    clock.advance(jump_s)
    assert [watch.check(None, clock.advance(5))[1] for _ in range(26)].count(1) == 1


def test_checkpoints_keep_their_order_when_the_clock_is_set_back(tmp_path: Path) -> None:
    place = CheckpointPlace(url=tmp_path.as_uri(), path="dag/task/run/-1", token=1)
    store, clock = open_store(place), FakeClock()
    right = claim_place(store, place)
    for step, jump_s in enumerate([0.0, HOUR_S, -2 * HOUR_S, 1.0]):
        folder = tmp_path / f"staged{step}"
        folder.mkdir()
        (folder / "state.json").write_text(str(step))
        publish(store, right, folder, step=step, metrics={}, now=clock.advance(jump_s))
    entries = read_index(store, place.path).entries
    assert [entry.step for entry in entries] == [1, 2, 3]
    assert [entry.published_at for entry in entries] == sorted(entry.published_at for entry in entries)
    assert load_latest(store, place, tmp_path / "loaded").step == 3
