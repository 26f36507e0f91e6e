from __future__ import annotations

from datetime import timedelta

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.scheduling.unresponsive_schedulers import START_TIMEOUT, SUSPENSION, UnresponsiveSchedulers
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_pending, a_place, a_worker

NOW = EPOCH + timedelta(minutes=5)


class OneOfTwo(FakeEngine):
    """A scheduler that owns the requests with its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def is_ours(self, request_id: str) -> bool:
        return request_id.startswith(self.name)


def test_devices_go_to_the_next_request_after_the_start_timeout() -> None:
    store, engine = MemoryStore(), OneOfTwo("alive")
    store.record([WorkerSeen(a_worker())], EPOCH)
    store.record(
        [RequestSubmitted(a_pending("dead", "gpu:2")), RequestSubmitted(a_pending("alive", "gpu:2", at_s=1))], EPOCH
    )
    cycle = Cycle(store, PriorityPolicy(), engine, 60)
    for seconds in (0, 1, 14):
        assert not cycle.run(NOW + timedelta(seconds=seconds)).dispatched, "it is not its turn"
    cycle.run(NOW + START_TIMEOUT)
    (lease,) = cycle.run(NOW + START_TIMEOUT).dispatched
    assert lease.request_id == "alive"
    assert [request.id for request in store.snapshot().pending] == ["dead"], "it keeps its place in the queue"


def test_an_adopted_request_keeps_its_place() -> None:
    store, engine = MemoryStore(), OneOfTwo("alive")
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("dead", "gpu:2"))], EPOCH)
    cycle = Cycle(store, PriorityPolicy(), engine, 60)
    cycle.run(NOW)
    cycle.run(NOW + START_TIMEOUT)
    engine.name = ""
    store.record([RequestSubmitted(a_pending("alive", "gpu:2", at_s=1))], EPOCH)
    (lease,) = cycle.run(NOW + START_TIMEOUT).dispatched
    assert lease.request_id == "dead"


def test_a_request_that_starts_in_time_is_never_suspended() -> None:
    store, ours, theirs = MemoryStore(), OneOfTwo("a"), OneOfTwo("b")
    store.record([WorkerSeen(a_worker())], EPOCH)
    store.record([RequestSubmitted(a_pending("b", "gpu:2")), RequestSubmitted(a_pending("a", "gpu:2", at_s=1))], EPOCH)
    cycle = Cycle(store, PriorityPolicy(), ours, 60)
    cycle.run(NOW)
    Cycle(store, PriorityPolicy(), theirs, 60).run(NOW + timedelta(seconds=10))
    assert not cycle.run(NOW + timedelta(seconds=60)).dispatched
    assert [lease.request_id for lease in theirs.dispatched] == ["b"]


def test_a_gang_is_suspended_as_a_whole_and_withdrawn_requests_are_forgotten() -> None:
    unresponsive, store = UnresponsiveSchedulers(), MemoryStore()
    members = [a_pending(f"g{n}", gang="g", gang_size=2) for n in range(2)]
    store.record([RequestSubmitted(request) for request in (*members, a_pending("single"))], EPOCH)
    snapshot = store.snapshot()
    assert unresponsive.without_suspended(snapshot, frozenset(), NOW + START_TIMEOUT) is snapshot
    unresponsive.observe(Plan((a_place("g0"),)), frozenset(), NOW)
    plan = unresponsive.observe(Plan((a_place("g0"),)), frozenset(), NOW + START_TIMEOUT)
    assert plan.until == NOW + START_TIMEOUT
    seen = unresponsive.without_suspended(snapshot, frozenset(), NOW + START_TIMEOUT)
    assert [request.id for request in seen.pending] == ["single"]
    assert unresponsive.without_suspended(snapshot, frozenset(), NOW + START_TIMEOUT).pending is seen.pending, (
        "policies rely on it"
    )
    store.record([RequestWithdrawn("g0", "cleared")], EPOCH)
    assert [
        request.id
        for request in unresponsive.without_suspended(store.snapshot(), frozenset(), NOW + START_TIMEOUT).pending
    ] == [
        "g1",
        "single",
    ]


def test_a_plan_holds_until_the_first_start_timeout() -> None:
    unresponsive = UnresponsiveSchedulers()
    assert unresponsive.observe(Plan(), frozenset(), NOW).until is None
    both = Plan((a_place("x"), a_place("y")))
    assert unresponsive.observe(Plan((a_place("x"),)), frozenset(), NOW).until == NOW + START_TIMEOUT
    assert unresponsive.observe(both, frozenset("y"), NOW + timedelta(seconds=5)).until == NOW + START_TIMEOUT
    earlier = Plan(both.places, until=NOW + timedelta(seconds=7))
    assert unresponsive.observe(earlier, frozenset(), NOW + timedelta(seconds=6)).until == NOW + timedelta(seconds=7)


def test_a_suspension_ends() -> None:
    store, engine = MemoryStore(), OneOfTwo("alive")
    store.record([WorkerSeen(a_worker())], EPOCH)
    store.record(
        [RequestSubmitted(a_pending("slow", "gpu:2")), RequestSubmitted(a_pending("alive", "gpu:2", at_s=1))], EPOCH
    )
    cycle = Cycle(store, PriorityPolicy(), engine, 600)
    cycle.run(NOW)
    cycle.run(NOW + START_TIMEOUT)
    (lease,) = cycle.run(NOW + START_TIMEOUT).dispatched
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED)], NOW + START_TIMEOUT)
    store.record([RequestSubmitted(a_pending("alive-2", "gpu:2", at_s=2))], NOW + START_TIMEOUT)
    (lease,) = cycle.run(NOW + START_TIMEOUT + SUSPENSION / 2).dispatched
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED)], NOW + START_TIMEOUT + SUSPENSION / 2)
    store.record([RequestSubmitted(a_pending("alive-3", "gpu:2", at_s=3))], NOW + START_TIMEOUT + SUSPENSION / 2)
    assert not cycle.run(NOW + START_TIMEOUT + SUSPENSION).dispatched, "the devices are kept for it again"


def test_a_gang_of_two_schedulers_starts_although_both_suspended_it() -> None:
    """The owner of the first member has died, and the scheduler that adopted it does not place the gang."""
    store, first, second = MemoryStore(), OneOfTwo("a"), OneOfTwo("b")
    store.record([WorkerSeen(a_worker())], EPOCH)
    gang = [a_pending(name, "gpu", gang="g", gang_size=2, at_s=n) for n, name in enumerate("ab")]
    store.record([RequestSubmitted(member) for member in gang], EPOCH)
    blocked = Cycle(store, PriorityPolicy(), second, 600)
    for seconds in (0, 15, 16):
        blocked.run(NOW + timedelta(seconds=seconds))
    assert [request.id for request in store.snapshot().pending] == ["a", "b"], "its own member is not the first"
    Cycle(store, PriorityPolicy(), first, 600).run(NOW + timedelta(seconds=20))
    assert store.snapshot().pending == ()


def test_a_plan_holds_until_the_first_suspension_ends() -> None:
    unresponsive = UnresponsiveSchedulers()
    unresponsive.observe(Plan((a_place("x"),)), frozenset(), NOW)
    unresponsive.observe(Plan((a_place("x"),)), frozenset(), NOW + START_TIMEOUT)
    assert unresponsive.observe(Plan(), frozenset(), NOW + START_TIMEOUT).until == NOW + START_TIMEOUT + SUSPENSION
