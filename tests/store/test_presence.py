"""Heartbeats: reported leases, the return of a lost worker, and the API server's own heartbeats.

A worker comes and goes while a scheduler takes its leases back: in any order, no device serves two tasks.
"""

from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from hetero_airflow.model.heartbeat import ServerHeartbeat, WorkerHeartbeat
from hetero_airflow.model.host_data import CacheCounts, HostData, held_name
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.store import (
    SCHEDULER_KEPT,
    RequestSubmitted,
    SchedulerDecided,
    ServerAlive,
    WorkerAlive,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease
from tests.effort import effort, long
from tests.sqlite_store import SqliteStore

LATER, MUCH_LATER = EPOCH + timedelta(seconds=60), EPOCH + timedelta(days=2)
NONE: frozenset[str] = frozenset()


def at(seconds: float):
    return EPOCH + timedelta(seconds=seconds)


def seen(*leases: Lease, worker=None) -> WorkerSeen:
    return WorkerSeen(worker or a_worker(), leases=frozenset(lease.id for lease in leases))


def leased(store, request_id: str, device: str) -> Lease:
    store.record([RequestSubmitted(a_pending(request_id))], EPOCH)
    (lease,) = store.commit(Plan((a_place(request_id, **{device: 1000}),)), EPOCH, LATER).leases
    return lease


def evict(store, lease: Lease) -> None:
    move_lease(store, lease.id, lease.token, LeaseState.EVICTED, LATER)


def is_online(store) -> bool:
    return [worker.state for worker in store.snapshot().workers] == [WorkerState.ONLINE]


@pytest.fixture
def lost(store) -> Lease:
    """A lease on a worker that is lost."""
    store.record([seen()], EPOCH)
    lease = leased(store, "r1", "GPU-0")
    store.record([WorkerAlive("worker-a", leases=frozenset({lease.id})), WorkerLost("worker-a")], EPOCH)
    return lease


def test_no_one_has_been_heard_of_yet(store):
    assert (store.last_seen(), store.heartbeats(), store.server_heartbeat()) == ({}, {}, None)
    assert store.last_decisions() == {}


def test_what_a_host_holds_stays_until_it_says_something_else(store):
    first = HostData(held={held_name("s3://lake/a"): 10}, counts=CacheCounts(hits=2, saved_s=1.5))
    store.record([WorkerSeen(a_worker(), data=first), WorkerSeen(a_worker("worker-b"))], EPOCH)
    before = store.snapshot()
    store.record([WorkerAlive("worker-a"), WorkerAlive("unknown", data=first)], at(5))
    assert store.host_data() == {"worker-a": first}
    store.record([WorkerAlive("worker-a", data=HostData()), WorkerAlive("worker-b", data=first)], at(10))
    assert store.host_data() == {"worker-a": HostData(), "worker-b": first}
    assert store.snapshot() is before, "no scheduler decides again because of it"


def test_what_an_agent_says_last_of_leases_counts(store):
    store.record([seen(), WorkerSeen(a_worker("own-host"))], EPOCH)
    assert store.heartbeats() == {"worker-a": WorkerHeartbeat(EPOCH, NONE)}
    before = store.snapshot()
    store.record([WorkerAlive("worker-a", leases=frozenset({"l1", "l2"})), WorkerAlive("unknown", leases=NONE)], at(5))
    assert store.heartbeats() == {"worker-a": WorkerHeartbeat(at(5), frozenset({"l1", "l2"}))}
    store.record([seen(worker=a_worker(labels={"a": "b"}))], at(10))
    assert store.heartbeats() == {"worker-a": WorkerHeartbeat(at(10), NONE)}
    store.record([WorkerAlive("worker-a", leases=frozenset({"l1"})), WorkerAlive("worker-a")], at(15))
    assert store.heartbeats() == {"worker-a": WorkerHeartbeat(at(15), frozenset({"l1"}))}
    assert before.sequence + 1 == store.snapshot().sequence, "the labels"


def test_of_a_lost_worker_what_was_said_before_counts_no_more(store, lost):
    assert store.heartbeats() == {}
    store.record([WorkerAlive("worker-a", leases=NONE)], LATER)
    assert (store.heartbeats(), is_online(store)) == ({}, False)


def test_a_lost_worker_comes_back_at_once_when_no_process_of_a_lease_is_there(store, lost):
    store.record([seen()], LATER)
    assert (is_online(store), store.heartbeats()) == (True, {"worker-a": WorkerHeartbeat(LATER, NONE)})


def test_a_lost_worker_comes_back_only_when_the_processes_of_leases_that_are_over_are_gone(store, lost):
    evict(store, lost)
    changed = a_worker(devices=(a_cpu(),))
    for seconds in (60, 65, 70):
        store.record([seen(lost, worker=changed)], at(seconds))
        assert not is_online(store)
        assert store.heartbeats() == {"worker-a": WorkerHeartbeat(at(seconds), frozenset({lost.id}))}
    store.record([RequestSubmitted(a_pending("r2"))], LATER)
    assert store.commit(Plan((a_place("r2", **{"GPU-0": 1000}),)), LATER, MUCH_LATER).raced == ("r2",)
    store.record([seen(worker=changed)], at(75))
    assert store.snapshot().workers == (changed,)


def test_a_lost_worker_comes_back_with_the_leases_that_it_still_holds_once_it_has_reported_of_them_twice(store, lost):
    store.record([seen(lost)], LATER)
    assert not is_online(store), "a scheduler may be taking them back just now"
    store.record([seen(lost)], at(65))
    assert is_online(store)
    assert [lease.id for lease in store.snapshot().leases] == [lost.id]


def test_leases_that_are_taken_back_between_the_two_keep_the_worker_out(store, lost):
    store.record([seen(lost)], LATER)
    evict(store, lost)
    store.record([seen(lost)], at(65))
    assert not is_online(store)


def test_a_worker_that_is_lost_again_has_to_report_twice_again(store, lost):
    store.record([seen(lost), seen(lost), WorkerLost("worker-a"), seen(lost)], LATER)
    assert not is_online(store)


@pytest.mark.parametrize("lease_id", ["unknown", "another's"])
def test_leases_of_no_one_and_of_others_keep_a_lost_worker_out(store, lost, lease_id):
    store.record([seen(worker=a_worker("worker-b"))], EPOCH)
    store.record([RequestSubmitted(a_pending("rb"))], EPOCH)
    (foreign,) = store.commit(Plan((a_place("rb", "worker-b", **{"GPU-0": 1000}),)), EPOCH, LATER).leases
    reported = frozenset({foreign.id if lease_id == "another's" else lease_id})
    for _ in range(3):
        store.record([WorkerSeen(a_worker(), leases=reported)], LATER)
        assert store.snapshot().workers[0].state is WorkerState.LOST


def test_a_new_worker_with_processes_that_no_one_knows_is_not_there_until_they_are_gone(store):
    for _ in range(2):
        store.record([WorkerSeen(a_worker(), leases=frozenset({"unknown"}))], EPOCH)
        assert (store.snapshot().workers, store.heartbeats(), store.last_seen()) == ((), {}, {})
    store.record([WorkerSeen(a_worker(), leases=frozenset({"unknown"})), WorkerSeen(a_worker())], EPOCH)
    assert (is_online(store), store.heartbeats()) == (True, {})


def test_leases_that_are_over_do_not_take_a_worker_that_is_there_away(store):
    store.record([seen()], EPOCH)
    lease = leased(store, "r1", "GPU-0")
    evict(store, lease)
    store.record([seen(lease, worker=a_worker(labels={"a": "b"}))], LATER)
    assert is_online(store)
    assert store.snapshot().workers[0].labels == {"a": "b"}


def test_whoever_says_nothing_of_leases_is_back_at_once(store, lost):
    """A scheduler on its own host."""
    store.record([WorkerSeen(a_worker())], LATER)
    assert (is_online(store), store.heartbeats()) == (True, {})


def test_the_api_server_is_there_from_its_first_word_on_and_changes_no_snapshot(store):
    before = store.snapshot()
    for seconds, is_new in ((0, True), (5, False), (10, False)):
        store.record([ServerAlive(is_new)], at(seconds))
    assert store.server_heartbeat() == ServerHeartbeat(EPOCH, at(10))
    assert store.snapshot() is before


def test_the_last_decision_of_each_scheduler_stays_until_another_one_decides_an_hour_later(store):
    before = store.snapshot()
    store.record([SchedulerDecided("host-a:1", EPOCH), SchedulerDecided("host-b:1", at(3))], at(4))
    store.record([SchedulerDecided("host-a:1", at(5))], at(6))
    assert store.last_decisions() == {"host-a:1": at(5), "host-b:1": at(3)}
    assert store.snapshot() is before
    store.record([SchedulerDecided("host-b:1", at(5) + SCHEDULER_KEPT)], MUCH_LATER)
    assert store.last_decisions() == {"host-a:1": at(5), "host-b:1": at(5) + SCHEDULER_KEPT}
    store.record([SchedulerDecided("host-b:1", MUCH_LATER)], MUCH_LATER)
    assert store.last_decisions() == {"host-b:1": MUCH_LATER}


def test_an_api_server_that_was_away_or_has_started_is_there_since_then(store):
    store.record([ServerAlive(is_new=True)], EPOCH)
    store.record([ServerAlive()], at(30))
    assert store.server_heartbeat() == ServerHeartbeat(at(30), at(30))
    store.record([ServerAlive(is_new=True)], at(32))
    assert store.server_heartbeat() == ServerHeartbeat(at(32), at(32))


def test_of_two_api_servers_one_is_enough_and_their_clocks_need_not_agree(store):
    for seconds in (0, 2, 5, 4, 9, 9, 12):
        store.record([ServerAlive()], at(seconds))
    assert store.server_heartbeat() == ServerHeartbeat(EPOCH, at(12))


def test_an_api_servers_clock_that_is_set_back_begins_again(store):
    store.record([ServerAlive()], MUCH_LATER)
    store.record([ServerAlive()], EPOCH)
    assert store.server_heartbeat() == ServerHeartbeat(EPOCH, EPOCH)


WORKER = a_worker(devices=(a_cpu(), a_device("GPU-0")))
FOREVER = EPOCH + timedelta(days=1)


class Host(RuleBasedStateMachine):
    """A host with one GPU, its agent, and a scheduler, which communicate only through the store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteStore()
        self.store.record([WorkerSeen(WORKER, leases=frozenset())], EPOCH)
        self.requests = 0
        self.processes: dict[str, Lease] = {}
        """Leases whose processes run."""
        self.ending: set[str] = set()
        self.doomed: list[tuple[Lease, int]] = []
        """Leases that the scheduler is about to take back, and the number of the agent's reports since."""
        self.spoken = 0

    @property
    def is_online(self) -> bool:
        return self.store.snapshot().workers[0].state is WorkerState.ONLINE

    @precondition(lambda self: self.is_online and not self.store.snapshot().leases)
    @rule()
    def place(self) -> None:
        """The store grants what fits, and the process starts."""
        self.requests += 1
        name = f"r{self.requests}"
        self.store.record([RequestSubmitted(a_pending(name))], EPOCH)
        for lease in self.store.commit(Plan((a_place(name, **{"GPU-0": 1000}),)), EPOCH, FOREVER).leases:
            self.processes[lease.id] = lease

    @precondition(lambda self: self.processes)
    @rule(is_rare=st.integers(0, 4))
    def finish(self, is_rare) -> None:
        """A task ends by itself, and its lease ends unless it was taken back before."""
        if is_rare:
            return
        lease_id, lease = self.processes.popitem()
        if lease_id in {held.id for held in self.store.snapshot().leases}:
            move_lease(self.store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)

    @rule()
    def speak(self) -> None:
        """The agent reports its leases by a heartbeat or an inventory, and learns which are over."""
        reported = frozenset(self.processes)
        kind = WorkerAlive("worker-a", leases=reported) if self.is_online else WorkerSeen(WORKER, leases=reported)
        self.store.record([kind], EPOCH)
        self.spoken += 1
        held = {lease.id for lease in self.store.snapshot().leases}
        self.ending = set(self.processes) - held

    @precondition(lambda self: self.ending)
    @rule()
    def heed(self) -> None:
        """Processes that the agent has to end are gone some time later."""
        for lease_id in self.ending:
            self.processes.pop(lease_id, None)
        self.ending = set()

    @precondition(lambda self: self.is_online)
    @rule()
    def lose(self) -> None:
        """The network breaks for longer than the liveness timeout."""
        self.store.record([WorkerLost("worker-a")], EPOCH)

    @precondition(lambda self: not self.is_online)
    @rule()
    def doom(self) -> None:
        """Like `engines.remote.remote_liveness`, finds leases on a lost worker that its agent does not report."""
        heartbeat = self.store.heartbeats().get("worker-a")
        reported = heartbeat.leases if heartbeat else frozenset()
        self.doomed = [(lease, self.spoken) for lease in self.store.snapshot().leases if lease.id not in reported]

    @precondition(lambda self: self.doomed)
    @rule()
    def take_back(self) -> None:
        """It takes them back before the agent has reported twice since: there are 5 s between its reports."""
        for lease, spoken in self.doomed:
            if self.spoken - spoken < 2 and lease.id in {held.id for held in self.store.snapshot().leases}:
                move_lease(self.store, lease.id, lease.token, LeaseState.EVICTED, EPOCH)
        self.doomed = []

    @invariant()
    def no_device_serves_two(self) -> None:
        assert len(self.processes) <= 1, sorted(self.processes)


@long
def test_no_device_serves_two_tasks_however_a_worker_comes_and_goes():
    limits = settings(max_examples=effort(60, 500), stateful_step_count=30, deadline=None, derandomize=True)
    run_state_machine_as_test(Host, settings=limits)
