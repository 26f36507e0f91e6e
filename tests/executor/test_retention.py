from __future__ import annotations

from datetime import timedelta

from hetero_airflow.executor.retention import WorkerRetention
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import WorkerForgotten, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker

HOUR = timedelta(hours=1)
DAY_S = 86_400.0


def a_store() -> MemoryStore:
    """One worker is online, another is lost."""
    store = MemoryStore()
    store.record([WorkerSeen(a_worker(key)) for key in ("worker-a", "worker-b")], EPOCH)
    store.record([WorkerLost("worker-b")], EPOCH)
    return store


def test_a_lost_worker_is_forgotten_after_the_configured_time():
    retention = WorkerRetention(a_store(), DAY_S, 30 * DAY_S)
    late = EPOCH + 24 * HOUR
    assert [retention.find_forgettable(EPOCH + hours * HOUR) for hours in (0, 23, 24)] == [(), (), ()]
    later = late + timedelta(seconds=1)
    assert retention.find_forgettable(later) == (WorkerForgotten("worker-b", later - 24 * HOUR),)


def test_a_scheduler_that_just_started_gives_workers_time_to_come_back():
    store = a_store()
    retention, start = WorkerRetention(store, DAY_S, 30 * DAY_S), EPOCH + 100 * HOUR
    assert retention.find_forgettable(start) == ()
    assert retention.find_forgettable(start + timedelta(minutes=9)) == ()
    store.record([WorkerSeen(a_worker("worker-b"))], start)
    assert retention.find_forgettable(start + timedelta(minutes=10)) == ()
    store.record([WorkerLost("worker-b")], start)
    assert retention.find_forgettable(start + timedelta(minutes=11)) == ()
    assert retention.find_forgettable(start + 25 * HOUR) != ()


def test_the_heartbeats_are_read_only_if_a_worker_is_lost_for_long():
    class NoPresence(MemoryStore):
        def last_seen(self):
            raise AssertionError("not needed")

    store = NoPresence()
    store.record([WorkerSeen(a_worker())], EPOCH)
    assert WorkerRetention(store, DAY_S, DAY_S).find_forgettable(EPOCH + 100 * HOUR) == ()
