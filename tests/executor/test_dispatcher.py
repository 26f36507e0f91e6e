from datetime import timedelta

import pytest

from hetero_airflow.errors import StoreUnavailable
from hetero_airflow.executor.carrier import unload_lease
from hetero_airflow.executor.task_instances import TaskProcess
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import Submitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_worker


def test_a_placed_task_carries_its_lease_and_the_coordinators_queue(bench):
    bench.hold("train", "gpu:2")
    bench.beat()
    workload = bench.engine.started[0]
    lease = unload_lease(workload.ti.context_carrier)
    assert (workload.ti.queue, lease.ids) == ("hetero", ("GPU-0", "GPU-1"))
    assert [(record[0].key, record[1]) for record in bench.tasks.records] == [("train", lease)]


def test_tasks_wait_until_devices_are_free_and_get_a_new_token_if_theirs_is_old(bench):
    for name in "abc":
        bench.hold(name)
    bench.beat()
    assert bench.started == ["a", "b"]
    assert list(bench.dispatcher.held) == ["c"]
    bench.keeper.end("a", "the task ended")
    bench.beat(200)
    assert (bench.started, bench.tokens) == (["a", "b", "c"], ["c"])


def test_held_tasks_and_those_that_wait_in_the_engine_are_kept_fresh(bench):
    ids = [bench.hold(name) for name in "abc"]
    bench.beat()
    bench.beat(149)
    bench.beat(1)
    first = bench.tasks.refreshed[0][1]
    assert bench.tasks.refreshed == [(sorted(ids), first), (sorted(ids), first + timedelta(seconds=150))]


def test_a_held_task_that_airflow_does_not_want_any_more_leaves_the_queue(bench):
    bench.hold("a", "gpu:2")
    id_ = bench.hold("b")
    bench.beat()
    bench.tasks.rows[id_] = TaskProcess("failed")
    bench.beat(1)
    assert (list(bench.dispatcher.held), bench.store.snapshot().pending, bench.reports) == ([], (), [])


def test_what_nothing_can_run_is_refused_at_once_with_the_nearest(bench):
    bench.hold("a", "h100:8")
    bench.beat()
    key, state, reason = bench.reports[0]
    assert (key, state, list(bench.dispatcher.held)) == ("a", "failed", [])
    assert "a100-sxm4-40gb" in reason


def test_a_task_fails_after_its_waiting_limit_and_not_before(bench):
    bench.hold("a", "gpu:2")
    bench.hold("b", wait_timeout=30)
    bench.beat()
    bench.beat(29.9)
    assert bench.reports == []
    bench.beat(1)
    assert [(key, state) for key, state, _ in bench.reports] == [("b", "failed")]
    assert "busy" in bench.reports[0][2]


def test_a_request_that_can_not_be_rendered_fails_its_task_alone(bench):
    bench.hold("a")
    bench.dispatcher.held["a"].asked = {"device": "gpuu"}
    bench.hold("b")
    bench.beat()
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]
    assert bench.started == ["b"]


def test_the_same_key_held_again_while_its_lease_is_not_free_waits_for_that(bench):
    """Trap 1: a deferred task comes back with the same key and id before its first leg's end is known."""
    id_ = bench.hold("a", "gpu:2")
    bench.beat()
    bench.run(id_)
    bench.hold("a", "gpu:2")
    bench.beat(1)
    assert bench.started == ["a"]
    bench.engine.alive.clear()
    bench.keeper.end("a", "the task ended")
    bench.beat(1)
    assert bench.started == ["a", "a"]


def test_requests_that_airflow_gave_up_while_no_scheduler_looked_leave_the_queue(bench):
    forgotten, foreign = "00000000-0000-0000-0000-00000000000f", "00000000-0000-0000-0000-00000000000a"
    bench.store.record([Submitted(a_pending(forgotten)), Submitted(a_pending(foreign))], EPOCH)
    bench.tasks.rows[foreign] = TaskProcess("queued")
    bench.beat()
    assert [pending.id for pending in bench.store.snapshot().pending] == [foreign]
    assert bench.started == []


def test_a_task_that_was_leased_by_a_scheduler_which_died_starts_on_that_lease(make_bench):
    first = make_bench()
    first.store.record([WorkerSeen(a_worker())], EPOCH)
    id_ = first.hold("a")
    first.beat()
    second = make_bench(first.store)
    second.hold("a")
    second.beat(1)
    assert second.started == ["a"]
    assert second.store.snapshot().leases == (first.lease(id_),)


def test_a_database_that_does_not_answer_costs_one_warning_and_loses_nothing(make_bench, caplog):
    class FailingStore(MemoryStore):
        is_down = False

        def snapshot(self):
            if self.is_down:
                raise StoreUnavailable("the store", found="no answer", remedy="Start it")
            return super().snapshot()

    bench = make_bench(FailingStore())
    bench.store.record([WorkerSeen(a_worker())], EPOCH)
    bench.store.is_down = True
    bench.hold("a")
    for _ in range(3):
        bench.beat(1)
    warnings = [record.getMessage() for record in caplog.records if "Start it" in record.getMessage()]
    assert len(warnings) == 1
    bench.store.is_down = False
    bench.beat(1)
    assert bench.started == ["a"]


def test_a_device_that_vanishes_while_leased_gets_no_other_task(bench):
    id_ = bench.hold("a", "gpu:2")
    bench.beat()
    bench.run(id_)
    bench.store.record([WorkerSeen(a_worker(devices=(a_device("GPU-1", index=1),)))], bench.clock.now())
    bench.hold("b")
    bench.beat(1)
    assert bench.started == ["a"]
    bench.engine.alive.clear()
    bench.keeper.end("a", "the task ended")
    bench.beat(1)
    lease = unload_lease(bench.engine.started[1].ti.context_carrier)
    assert (bench.started, lease.ids) == (["a", "b"], ("GPU-1",))


def test_a_worker_that_is_not_seen_any_more_gets_no_task(bench):
    bench.beat()
    bench.beat(200)
    bench.hold("a")
    bench.beat(1)
    assert bench.started == []
    assert "has not been seen" in bench.dispatcher.held["a"].told or "lost" in bench.dispatcher.held["a"].told


@pytest.mark.parametrize("device", ["gpu", "gpu:0.5", "cpu:2", {"device": "gpu", "cpus": 2, "host_memory": "1GiB"}])
def test_every_device_kind_reaches_the_task(bench, device):
    bench.hold("a", device)
    bench.beat()
    assert unload_lease(bench.engine.started[0].ti.context_carrier).worker == "worker-a"
