"""A cycle: what it places and starts, what it sees of pending events, and what it does with paused requests."""

import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.errors import StoreError, StoreUnavailable
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import PAUSED, Place, Plan, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers
from hetero_airflow.scheduling.cycle import (
    MAX_ROUNDS,
    Cycle,
    CycleInterrupted,
    CycleResult,
    deferred_garbage_collection,
)
from hetero_airflow.scheduling.paused_requests import decide_without_paused
from hetero_airflow.scheduling.pending_events import with_pending_events
from hetero_airflow.scheduling.validation import ValidatedPolicy, plan_faults
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import (
    CommitResult,
    LeaseMove,
    Pause,
    RequestSubmitted,
    RequestWithdrawn,
    StoreEvent,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.testing import (
    EPOCH,
    FakeClock,
    FakeEngine,
    RejectingStore,
    a_pending,
    a_place,
    a_worker,
    snapshots,
)
from tests.sqlite_store import SqliteStore


class CountingPolicy:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or PriorityPolicy()
        self.decided = 0

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.decided += 1
        return self.policy.decide(snapshot, now)


class FixedPolicy:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        return self.plan


class BrokenPolicy:
    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        raise ZeroDivisionError("no workers left to divide by")


def a_store(*devices: object) -> SqliteStore:
    store = SqliteStore()
    submitted = [RequestSubmitted(a_pending(f"r{n}", device, at_s=n)) for n, device in enumerate(devices)]
    store.record([WorkerSeen(a_worker()), *submitted], EPOCH)
    return store


def outcomes(result: CycleResult) -> list[tuple[str, str]]:
    return [(type(decision).__name__, decision.request_id) for decision in result.plan.decisions]


def test_a_cycle_places_dispatches_and_leaves_the_rest_with_reasons() -> None:
    store, engine = a_store("gpu", "gpu:2", "cpu:2", "h100"), FakeEngine()
    result = Cycle(store, PriorityPolicy(), engine, 60).run(EPOCH)
    assert outcomes(result) == [("Place", "r0"), ("Wait", "r1"), ("Place", "r2"), ("Refuse", "r3")]
    assert [lease.request_id for lease in result.dispatched] == ["r0", "r2"]
    assert list(result.dispatched) == engine.dispatched
    assert {lease.expires_at for lease in engine.dispatched} == {EPOCH + timedelta(seconds=60)}
    assert [refuse.request_id for refuse in result.refused] == ["r3"]
    assert [pending.id for pending in store.snapshot().pending] == ["r1"]
    request_history = store.request_history("dag", "run", "r1")
    assert request_history is not None
    assert request_history.decisions[0]["outcome"] == "wait"


def test_nothing_is_decided_again_while_nothing_changes() -> None:
    store, policy, clock = a_store("gpu:2", "gpu"), CountingPolicy(), FakeClock()
    cycle = Cycle(store, policy, FakeEngine(), 60)
    first, second, third = (cycle.run(clock.advance(1)) for _ in range(3))
    assert [r.is_decided for r in (first, second, third)] == [True, True, False]
    assert (policy.decided, third) == (2, CycleResult(second.plan, is_decided=False))
    store.renew([(lease.id, lease.token) for lease in first.dispatched], clock.now() + timedelta(seconds=60))
    assert not cycle.run(clock.advance(1)).is_decided
    store.record([RequestSubmitted(a_pending("new", "cpu"))], clock.now())
    assert [lease.request_id for lease in cycle.run(clock.advance(1)).dispatched] == ["new"]


def test_pending_events_are_decided_in_the_same_cycle_and_recorded_once() -> None:
    store, engine, policy = a_store(), FakeEngine(), CountingPolicy()
    cycle = Cycle(store, policy, engine, 60)
    cycle.run(EPOCH)
    events = [RequestSubmitted(a_pending(name, "gpu:2", at_s=at)) for at, name in enumerate(("r0", "r1"))]
    assert cycle.run(EPOCH, events).recorded == 2
    assert [lease.request_id for lease in engine.dispatched] == ["r0"]
    assert [pending.id for pending in store.snapshot().pending] == ["r1"]
    cycle.run(EPOCH)
    cycle.run(EPOCH)
    assert policy.decided == 3, "the second decision follows the first placement, the third changes nothing"
    cycle.run(EPOCH, [RequestWithdrawn("r1", "it is not wanted")])
    assert store.snapshot().pending == ()


def test_events_that_wait_are_decided_once() -> None:
    store, policy = a_store("gpu:2"), CountingPolicy()
    cycle = Cycle(store, policy, FakeEngine(), 60)
    cycle.run(EPOCH)
    cycle.run(EPOCH)
    decided = policy.decided
    assert cycle.run(EPOCH, [RequestSubmitted(a_pending("r1", "gpu:2", at_s=1))]).is_decided
    assert not cycle.run(EPOCH).is_decided
    assert policy.decided == decided + 1


def test_a_request_that_lost_a_race_is_decided_again_on_a_fresh_snapshot() -> None:
    store, policy, engine = a_store("gpu", "gpu", "h100"), CountingPolicy(), FakeEngine()
    result = Cycle(RejectingStore(store, {"r0": 1}), policy, engine, 60).run(EPOCH)
    assert sorted(lease.request_id for lease in engine.dispatched) == ["r0", "r1"]
    assert (policy.decided, result.raced) == (2, ())
    assert sorted(outcomes(result)) == [("Place", "r0"), ("Place", "r1"), ("Refuse", "r2")]


def test_a_cycle_gives_up_after_a_few_lost_races_and_the_next_one_tries_again() -> None:
    store, policy, engine = a_store("gpu"), CountingPolicy(), FakeEngine()
    cycle = Cycle(RejectingStore(store, {"r0": MAX_ROUNDS}), policy, engine, 60)
    result = cycle.run(EPOCH)
    assert (policy.decided, result.raced, result.dispatched) == (MAX_ROUNDS, ("r0",), ())
    assert [lease.request_id for lease in cycle.run(EPOCH).dispatched] == ["r0"]


BAD_PLANS = [
    Plan(),
    Plan((a_place("r0", **{"GPU-0": 1001}),)),
    Plan((a_place("r0", **{"GPU-9": 1000}),)),
    Plan((a_place("r0", "worker-z", **{"GPU-0": 1000}),)),
    Plan((a_place("stranger", **{"GPU-0": 1000}),)),
    Plan((a_place("r0", **{"GPU-0": 1000}), a_place("r0", **{"GPU-1": 1000}))),
]


@pytest.mark.parametrize("policy", [BrokenPolicy(), *map(FixedPolicy, BAD_PLANS)])
def test_a_policy_that_fails_is_replaced_with_one_warning(policy: Policy, caplog: pytest.LogCaptureFixture) -> None:
    store, engine, clock = a_store("gpu"), FakeEngine(), FakeClock()
    cycle = Cycle(store, policy, engine, 60)
    with caplog.at_level(logging.WARNING):
        cycle.run(clock.now())
    assert [lease.request_id for lease in engine.dispatched] == ["r0"]
    [record] = caplog.records
    assert "is skipped" in record.getMessage()
    assert "The policy priority decides instead" in record.getMessage()


def test_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = a_store("gpu:2", "gpu")
    cycle = Cycle(store, BrokenPolicy(), FakeEngine(), 60)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            store.record([RequestSubmitted(a_pending(f"more{number}", "gpu", at_s=9))], EPOCH)
            cycle.run(EPOCH)
    assert [record.getMessage() for record in caplog.records] == [
        "Policy BrokenPolicy is skipped, it raised ZeroDivisionError: no workers left to divide by. "
        "The policy priority decides instead."
    ]


def test_an_undispatched_lease_is_released_and_its_request_waits_again(caplog: pytest.LogCaptureFixture) -> None:
    store, engine = a_store("gpu:2", "cpu"), FakeEngine()
    engine.failing = {"r0"}
    cycle = Cycle(store, Fifo(), engine, 60)
    result = cycle.run(EPOCH)
    assert [record.getMessage() for record in caplog.records] == [
        "Lease r0.1 is released and its request waits again, "
        "not dispatched: RuntimeError: the test makes the engine fail"
    ]
    assert [lease.request_id for lease in result.dispatched] == ["r1"]
    assert [pending.id for pending in store.snapshot().pending] == ["r0"]
    assert store.snapshot().pending[0] == a_pending("r0", "gpu:2")
    request_history = store.request_history("dag", "run", "r0")
    assert request_history is not None
    assert [lease.state for lease in request_history.leases] == [LeaseState.RELEASED]
    engine.failing = set()
    assert [lease.request_id for lease in cycle.run(EPOCH).dispatched] == ["r0"]


def test_a_database_that_fails_after_a_failed_dispatch_loses_no_request() -> None:
    class FailingStore(SqliteStore):
        is_down = False

        def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
            if self.is_down:
                raise StoreUnavailable("move", found="no database", remedy="Start it")
            return super().move(moves, now)

    store, engine = FailingStore(), FakeEngine()
    store.record([WorkerSeen(a_worker())], EPOCH)
    cycle = Cycle(store, Fifo(), engine, 60)
    engine.failing, store.is_down = {"r0"}, True
    with pytest.raises(CycleInterrupted, match="no database") as interrupted:
        cycle.run(EPOCH, [RequestSubmitted(a_pending("r0", "gpu:2"))])
    assert interrupted.value.recorded == 1, "it was recorded before"
    engine.failing, store.is_down = set(), False
    assert [lease.request_id for lease in cycle.run(EPOCH).dispatched] == ["r0"]


def test_an_unexpected_error_after_the_commit_does_not_hide_what_was_recorded() -> None:
    class BrokenStore(SqliteStore):
        def move(self, moves: Sequence[LeaseMove], now: datetime) -> tuple[Lease | StoreError, ...]:
            raise ZeroDivisionError

    store, engine = BrokenStore(), FakeEngine()
    store.record([WorkerSeen(a_worker())], EPOCH)
    engine.failing = {"r0"}
    with pytest.raises(CycleInterrupted) as interrupted:
        Cycle(store, Fifo(), engine, 60).run(EPOCH, [RequestSubmitted(a_pending("r0", "gpu:2"))])
    assert (type(interrupted.value.cause), interrupted.value.recorded) == (ZeroDivisionError, 1)


def test_an_expired_lease_whose_process_is_gone_gives_its_devices_to_the_next() -> None:
    store, engine, clock = a_store("gpu:2", "gpu:2"), FakeEngine(), FakeClock()
    cycle = Cycle(store, Fifo(), engine, 60)
    cycle.run(clock.now())
    engine.alive = {"r0": Liveness.ALIVE}
    late = cycle.run(clock.advance(61))
    assert [(lease.request_id, lease.state) for lease in store.snapshot().leases] == [("r0", LeaseState.EXPIRED)]
    assert late.dispatched == ()
    engine.alive = {"r0": Liveness.GONE}
    after = cycle.run(clock.advance(1))
    request_history = store.request_history("dag", "run", "r0")
    assert request_history is not None
    assert [lease.state for lease in request_history.leases] == [LeaseState.EVICTED]
    assert [lease.request_id for lease in after.dispatched] == ["r1"]


def test_a_lost_worker_gets_nothing() -> None:
    store = a_store("gpu")
    store.record([WorkerLost("worker-a")], EPOCH)
    result = Cycle(store, PriorityPolicy(), FakeEngine(), 60).run(EPOCH)
    (wait,) = result.plan.decisions
    assert isinstance(wait, Wait)
    assert str(wait.reason.code) == "lost"


@settings(max_examples=50, deadline=None)
@given(snapshot=snapshots())
def test_the_store_accepts_every_placement(snapshot: Snapshot) -> None:
    store, engine = SqliteStore(), FakeEngine()
    store.record([WorkerSeen(worker) for worker in snapshot.workers], EPOCH)
    store.record([RequestSubmitted(pending) for pending in snapshot.pending], EPOCH)
    result = Cycle(store, PriorityPolicy(), engine, 60).run(EPOCH)
    assert result.raced == ()
    placed = [decision for decision in result.plan.decisions if isinstance(decision, Place)]
    assert [place.request_id for place in placed] == [lease.request_id for lease in engine.dispatched]


def test_a_commit_that_loses_everything_still_gives_a_result() -> None:
    class DeafStore(SqliteStore):
        def commit(
            self, plan: Plan, now: datetime, expires_at: datetime, pending_events: Sequence[StoreEvent] = ()
        ) -> CommitResult:
            return CommitResult((), tuple(place.request_id for place in plan.places))

    store = DeafStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("r0"))], EPOCH)
    assert Cycle(store, PriorityPolicy(), FakeEngine(), 60).run(EPOCH).raced == ("r0",)


def test_another_schedulers_request_keeps_its_place_and_is_not_dispatched() -> None:
    store, engine = a_store("gpu:2", "gpu"), FakeEngine()
    engine.foreign = {"r0"}
    result = Cycle(store, Fifo(), engine, 60).run(EPOCH)
    assert [decision.request_id for decision in result.plan.decisions] == ["r1"]
    assert engine.dispatched == []
    assert [pending.id for pending in store.snapshot().pending] == ["r0", "r1"]


def test_an_adopted_request_is_decided_although_nothing_else_changed() -> None:
    store, engine = a_store("gpu"), FakeEngine()
    engine.foreign = {"r0"}
    cycle = Cycle(store, Fifo(), engine, 60)
    cycle.run(EPOCH)
    engine.foreign = set()
    assert [lease.request_id for lease in cycle.run(EPOCH).dispatched] == ["r0"]


def test_a_plan_holds_until_the_time_that_it_names() -> None:
    waits = PriorityPolicy().decide(a_store("gpu:2", "gpu").snapshot(), EPOCH).decisions[1:]
    store = a_store("gpu:2", "gpu")
    Cycle(store, PriorityPolicy(), FakeEngine(), 60).run(EPOCH)
    policy = CountingPolicy(FixedPolicy(Plan(waits, until=EPOCH + timedelta(seconds=20))))
    cycle = Cycle(store, policy, FakeEngine(), 600)
    untils = [cycle.run(EPOCH + timedelta(seconds=second)).plan.until for second in (1, 19, 20)]
    assert untils == [EPOCH + timedelta(seconds=20)] * 3
    assert policy.decided == 2


def test_garbage_collection_is_off_within_the_block_and_on_after_it() -> None:
    assert gc.isenabled()

    @deferred_garbage_collection()
    def fail() -> None:
        raise KeyError(gc.isenabled())

    with pytest.raises(KeyError, match="False"):
        fail()
    assert gc.isenabled()


def test_garbage_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with deferred_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


NAMES = st.sampled_from("abcdef")
EVENTS = st.lists(
    st.one_of(
        st.builds(lambda name, at_s: RequestSubmitted(a_pending(name, at_s=at_s)), NAMES, st.integers(0, 3)),
        st.builds(lambda name: RequestWithdrawn(name, "it is not wanted"), NAMES),
    )
)


@given(EVENTS, EVENTS)
def test_a_snapshot_with_pending_events_is_as_the_store_will_show_it(before, pending_events):
    store = SqliteStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("a")), *before], EPOCH)
    store.commit(Plan((a_place("a", **{"GPU-0": 1000}),)), EPOCH, EPOCH)
    seen = with_pending_events(store.snapshot(), pending_events)
    store.record(pending_events, EPOCH)
    assert replace(seen, sequence=store.snapshot().sequence) == store.snapshot()


def test_without_pending_events_it_is_the_same_snapshot():
    snapshot = SqliteStore().snapshot()
    assert with_pending_events(snapshot, ()) is snapshot


def paused(name, *args, **kwargs):
    return replace(a_pending(name, *args, **kwargs), is_paused=True)


def test_a_paused_request_waits_behind_all_others_and_reserves_nothing():
    pending = (paused("first", "gpu:2", priority="urgent"), a_pending("second", at_s=1), a_pending("third", "h100"))
    snapshot = Snapshot(1, (a_worker(),), pending=pending)
    plan = ValidatedPolicy(PriorityPolicy()).decide(snapshot, EPOCH)
    assert plan_faults(snapshot, plan) == []
    assert [place.request_id for place in plan.places] == ["second"]
    last = plan.decisions[-1]
    assert (last.request_id, last.reason, isinstance(last, Wait)) == ("first", PAUSED, True)


def test_a_gang_waits_for_its_paused_member():
    members = (
        replace(a_pending("a", "gpu"), gang="g", gang_size=2),
        replace(paused("b", "gpu"), gang="g", gang_size=2),
    )
    plan = decide_without_paused(PriorityPolicy().decide, Snapshot(1, (a_worker(),), pending=members), EPOCH)
    assert not any(isinstance(decision, Place) for decision in plan.decisions)


def test_a_paused_request_wants_no_worker():
    snapshot = Snapshot(1, (a_worker(),), pending=(paused("a", "gpu:2"), paused("b", "gpu:2")))
    assert (wanted_workers(snapshot).waiting, sum(row.workers for row in wanted_workers(snapshot).types)) == (0, 0)


def test_a_cycle_places_a_request_once_it_is_unpaused(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    tables.metadata.create_all(engine)
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("a"))], EPOCH)
    store.change_queue([Pause("a")])
    cycle = Cycle(store, PriorityPolicy(), FakeEngine(), 60)
    assert [wait.reason for wait in cycle.run(EPOCH).plan.decisions if isinstance(wait, Wait)] == [PAUSED]
    store.change_queue([Pause("a", is_paused=False)])
    assert [lease.request_id for lease in cycle.run(EPOCH).dispatched] == ["a"]
