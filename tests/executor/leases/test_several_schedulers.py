"""Two schedulers and one lease: who may use it, and who may end what."""

import signal
from datetime import timedelta

import pytest

from hetero_airflow.engines.engine import LeasedProcess
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.leases import recovery
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.testing import a_worker, move_lease


@pytest.fixture(autouse=True)
def no_task_state_store(monkeypatch):
    monkeypatch.setattr(recovery, "read_states", lambda keys, name: {})
    monkeypatch.setattr(recovery, "write_state", lambda key, name, text: None)


@pytest.fixture
def schedulers(make_bench):
    """Two schedulers on one host, with one store, one Airflow, one clock, and one set of processes."""
    first = make_bench(worker=a_worker())
    second = make_bench(first.store, clock=first.clock)
    second.tasks.rows, second.engine.alive = first.tasks.rows, first.engine.alive
    return first, second


def run(scheduler, device="gpu"):
    """A task that runs under a lease of this scheduler; its request id and its lease."""
    id_ = scheduler.hold("a", device)
    scheduler.beat()
    scheduler.clock.advance(1)
    scheduler.run(id_)
    return id_, scheduler.lease(id_)


def queue_again(scheduler, id_):
    """Airflow queues the task again with this scheduler. Its row keeps the process of the run before."""
    before = scheduler.tasks.rows[id_]
    scheduler.hold("a")
    scheduler.tasks.rows[id_] = TaskProcess("queued", before.pid, before.hostname, before.seen_at)


def leases(scheduler):
    history = scheduler.store.request_history("dag", "run", "a").leases
    return sorted((lease.token, lease.state) for lease in history)


def test_a_new_run_waits_for_the_frozen_one_and_gets_a_lease_of_its_own(schedulers):
    first, second = schedulers
    id_, lease = run(first)
    first.beat(10)
    first.lose_heartbeat("a")
    first.beat(10)
    assert first.tasks.sent_back == [id_]
    queue_again(second, id_)
    second.beat(10, times=3)
    assert (second.started, leases(second)) == ([], [(lease.token, LeaseState.ACTIVE)])
    assert second.engine.signals[0] == (lease.id, signal.SIGTERM)
    second.engine.alive.clear()
    second.beat(10)
    assert second.started == ["a"]
    assert leases(second) == [(lease.token, LeaseState.RELEASED), (lease.token + 1, LeaseState.GRANTED)]


def test_a_new_run_waits_for_the_run_of_a_scheduler_that_died(schedulers):
    first, second = schedulers
    id_, lease = run(first)
    queue_again(second, id_)
    second.beat(100)
    assert second.started == []
    second.engine.alive.clear()
    second.beat(1)
    assert [lease.token for lease in second.store.snapshot().leases] == [lease.token + 1]


def test_a_task_that_another_scheduler_started_gets_a_new_lease_once_nothing_of_the_old_one_runs(schedulers):
    first, second = schedulers
    id_ = first.hold("a")
    first.beat()
    lease = first.lease(id_)
    second.hold("a")
    second.engine.alive[lease.id] = [100]  # its supervisor has started, and has not reported to Airflow yet
    second.beat(1)
    assert (second.started, second.engine.signals) == ([], [])
    second.engine.alive.clear()
    second.beat(1)
    assert second.started == [], "another message may be on the way"
    second.beat(30, times=4)
    assert (second.started, second.lease(id_).token) == (["a"], lease.token + 1)


def test_a_supervisor_that_froze_before_it_began_is_ended_once_nobody_renews_its_lease(schedulers):
    first, second = schedulers
    id_ = first.hold("a")
    first.beat()
    lease = first.lease(id_)
    second.hold("a")
    second.engine.alive[lease.id] = [100]
    second.beat(70)
    second.beat(1, times=2)
    assert second.engine.signals == [(lease.id, signal.SIGTERM)]
    second.engine.alive.clear()
    second.beat(1)
    assert (second.started, second.lease(id_).token) == (["a"], lease.token + 1)


def test_a_task_that_began_elsewhere_meanwhile_is_not_started_again(schedulers):
    first, second = schedulers
    id_, _ = run(first)
    second.hold("a")
    second.run(id_)
    second.beat(0.5)
    assert (second.started, second.engine.signals) == ([], [])


@pytest.mark.parametrize("state", ["queued", "up_for_reschedule", "scheduled", "success", None])
def test_what_another_scheduler_ended_is_dropped_without_a_word(schedulers, state):
    first, _ = schedulers
    id_, lease = run(first)
    move_lease(first.store, lease.id, lease.token, LeaseState.EVICTED, first.clock.now())
    first.tasks.rows[id_] = TaskProcess(state, 100, "here", first.clock.now())
    first.beat(20, times=5)
    assert (first.engine.signals, first.reports, first.tasks.sent_back) == ([], [], [])
    assert (first.runs.leased, first.started) == ({}, ["a"])


def test_a_stale_keeper_leaves_the_healthy_rerun_alone(schedulers):
    """The first scheduler is stopped; meanwhile the task is killed, and runs again under a lease of the second."""
    first, second = schedulers
    id_, _ = run(first)
    first.engine.alive.clear()
    queue_again(second, id_)
    second.beat(7, times=2)
    second.run(id_, pid=200)
    for _ in range(5):
        first.beat(15)
        second.beat(0)
    assert (first.engine.signals, first.reports, first.tasks.sent_back) == ([], [], [])
    assert (second.engine.signals, second.reports, second.started) == ([], [], ["a"])
    assert second.lease(id_).state is LeaseState.ACTIVE


def test_the_end_of_a_lease_that_another_scheduler_ended_says_nothing(schedulers):
    first, _ = schedulers
    _, lease = run(first)
    first.end("a")
    move_lease(first.store, lease.id, lease.token, LeaseState.RELEASED, first.clock.now())
    first.engine.alive.clear()
    first.dispatcher.free_ended(first.clock.now())
    assert first.runs.request_ids() == set()


def test_the_process_of_another_run_is_never_taken_for_that_of_a_lease(schedulers):
    """Airflow's row has the pid of one run only: of the last one that began."""
    first, _ = schedulers
    id_ = first.hold("a")
    first.beat()
    lease, seen = first.lease(id_), []
    first.tasks.rows[id_] = TaskProcess("queued", 100, "here", lease.granted_at - timedelta(seconds=1))
    liveness_of = first.engine.liveness_of
    first.engine.liveness_of = lambda processes: seen.extend(processes) or liveness_of(processes)
    first.beat(5)
    assert seen == [LeasedProcess(lease.model_copy(update={"state": LeaseState.GRANTED}), "queued", is_ours=True)]


def test_a_task_that_is_sent_back_keeps_its_place_in_the_queue_with_another_scheduler(schedulers):
    first, second = schedulers
    id_, _ = run(first, "gpu:2")
    submitted_at = first.store.request_history("dag", "run", "a").pending.submitted_at
    first.hold("b", "gpu:2")
    first.beat(10)
    first.lose_heartbeat("a")
    first.beat(10)
    second.tasks.sent_back = first.tasks.sent_back
    queue_again(second, id_)
    second.beat(10)
    first.engine.alive.clear()
    first.beat(10)
    second.beat(10)
    pending = first.store.request_history("dag", "run", "a").pending
    assert (pending.submitted_at, pending.interruptions) == (submitted_at, 1)


def test_it_keeps_its_place_too_if_the_other_scheduler_frees_its_lease(schedulers):
    first, second = schedulers
    id_, lease = run(first, "gpu:2")
    submitted_at = first.store.request_history("dag", "run", "a").pending.submitted_at
    first.hold("b", "gpu:2")
    first.beat(10)
    first.lose_heartbeat("a")
    second.tasks.sent_back = first.tasks.sent_back
    first.engine.alive.clear()
    queue_again(second, id_)
    second.beat(10, times=3)
    assert leases(second)[0] == (lease.token, LeaseState.RELEASED)
    assert first.store.request_history("dag", "run", "a").pending.submitted_at == submitted_at
