"""Workers that fall silent are lost, and lost ones are forgotten in the end."""

from datetime import timedelta

from hetero_airflow.executor.lost_worker_watch import LostWorkerWatch, WorkerRetention
from hetero_airflow.store.store import ServerAlive, WorkerAlive, WorkerForgotten, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker
from tests.sqlite_store import SqliteStore


class CountingStore(SqliteStore):
    looks = 0

    def last_seen(self):
        self.looks += 1
        return super().last_seen()


def at(seconds: float):
    return EPOCH + timedelta(seconds=seconds)


def live(store: CountingStore, until_s: float, silent_from_s: float) -> float | None:
    """Two agents that beat every 5 s, of which one falls silent, and a scheduler's loop: when that one was lost."""
    watch = LostWorkerWatch(store, 15, None)
    store.record(
        [WorkerSeen(a_worker(key, engine="celery"), leases=frozenset()) for key in ("worker-a", "worker-b")], EPOCH
    )
    for tenth in range(int(until_s * 10)):
        now = at(tenth / 10)
        if tenth % 50 == 0:
            heard = ["worker-a", *(["worker-b"] if tenth / 10 < silent_from_s else [])]
            store.record([ServerAlive(), *(WorkerAlive(key, leases=frozenset()) for key in heard)], now)
        lost = watch.find_lost(now)
        if lost:
            assert lost == (WorkerLost("worker-b"),)
            return tenth / 10
    return None


def test_a_worker_that_falls_silent_is_found_as_soon_as_the_timeout_is_over():
    assert live(CountingStore(), 60, silent_from_s=20.1) == 20 + 15


def test_a_fleet_that_is_there_is_looked_at_a_few_times_a_minute():
    store = CountingStore()
    assert live(store, 60, silent_from_s=1000) is None
    assert 10 <= store.looks <= 14


def test_the_schedulers_own_worker_is_not_lost_to_itself():
    store = CountingStore()
    store.record([WorkerSeen(a_worker(key)) for key in ("worker-a", "worker-b")], EPOCH)
    watch = LostWorkerWatch(store, 15, "worker-a")
    assert [watch.find_lost(at(seconds)) for seconds in (0, 5, 10, 15)] == [(), (), (), (WorkerLost("worker-b"),)]


def test_after_an_outage_of_the_database_the_other_schedulers_have_time_to_report_their_hosts():
    store = CountingStore()
    store.record([WorkerSeen(a_worker(key)) for key in ("worker-a", "worker-b", "worker-c")], EPOCH)
    watch = LostWorkerWatch(store, 15, "worker-a")
    assert [watch.find_lost(at(seconds)) for seconds in (0, 5, 600, 602)] == [()] * 4
    store.record([WorkerSeen(a_worker("worker-b"))], at(604))
    assert watch.find_lost(at(605)) == (WorkerLost("worker-c"),)


def test_a_clock_that_is_set_back_does_not_end_the_looking():
    store = CountingStore()
    watch = LostWorkerWatch(store, 15, None)
    for seconds in (0, -1000, -999.5, -990):
        watch.find_lost(at(seconds))
    assert store.looks == 3


HOUR = timedelta(hours=1)
DAY_S = 86_400.0


def a_store() -> SqliteStore:
    """One worker is online, another is lost."""
    store = SqliteStore()
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
    class NoPresence(SqliteStore):
        def last_seen(self):
            raise AssertionError("not needed")

    store = NoPresence()
    store.record([WorkerSeen(a_worker())], EPOCH)
    assert WorkerRetention(store, DAY_S, DAY_S).find_forgettable(EPOCH + 100 * HOUR) == ()
