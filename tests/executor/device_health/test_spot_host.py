"""The scheduler's own host, when its provider takes the machine back."""

import time
from datetime import timedelta

import pytest

from hetero_airflow.executor.device_health.spot_host import SpotHost
from hetero_airflow.health.transitions import leases_to_migrate
from hetero_airflow.model.hold import HoldKind
from hetero_airflow.model.plan import Plan
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.sqlite_store import SqliteStore


def stepped(host, store, until):
    give_up_at = time.monotonic() + 600
    while not until() and time.monotonic() < give_up_at:
        host.step(EPOCH)
        time.sleep(0.01)
    return store.snapshot().holds


@pytest.fixture
def store():
    store = SqliteStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("r1"))], EPOCH)
    store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, EPOCH + timedelta(hours=1))
    return store


def test_a_notice_file_moves_the_tasks_of_the_host_until_it_is_gone(store, tmp_path, monkeypatch):
    monkeypatch.setattr("hetero_airflow.discovery.spot.LOOK_EVERY_S", 0.01)
    notice = tmp_path / "notice"
    host = SpotHost(store, "worker-a", str(notice))
    assert stepped(host, store, lambda: host.has_looked) == ()
    (tmp_path / "written").write_text("it ends at 12:00")
    (tmp_path / "written").rename(notice)  # an empty file would be a notice too
    (hold,) = stepped(host, store, lambda: store.snapshot().holds)
    assert (hold.kind, hold.cause, hold.moves) == (HoldKind.RECLAIMED, "it ends at 12:00", True)
    assert [lease.request_id for lease, _ in leases_to_migrate(store.snapshot())] == ["r1"]
    restarted = SpotHost(store, "worker-a", str(notice))
    restarted.step(EPOCH)
    assert store.snapshot().holds == (hold,)
    notice.unlink()
    assert stepped(restarted, store, lambda: not store.snapshot().holds) == ()


@pytest.mark.parametrize("worker_id", [None, "worker-b"])
def test_nothing_is_held_where_the_host_is_no_worker(store, tmp_path, worker_id):
    (tmp_path / "notice").touch()
    host = SpotHost(store, worker_id, str(tmp_path / "notice"))
    assert stepped(host, store, lambda: host.has_looked or worker_id is None) == ()
