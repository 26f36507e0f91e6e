"""Cycles with preemptions and gangs, and what is taken back because it expired or was not heard of."""

import logging
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.heartbeat import ServerHeartbeat
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Account, Plan, Preempt, Reason, ReasonCode, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.scheduling.reaper import forgettable_workers, lost_workers, reap
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, RejectingStore, a_lease, a_pending, a_place, a_worker, move_lease


class PlannedPolicy:
    """Lets all requests wait, and preempts the given ones."""

    def __init__(self, period_s: float | None = None) -> None:
        self.period_s = period_s
        self.preempts: dict[str, str | None] = {}
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.seen.append(snapshot)
        reason, account = Reason(ReasonCode.BUSY, "a", "b"), Account("test", "waits")
        waits = tuple(Wait(request.id, n, reason, account) for n, request in enumerate(snapshot.pending, start=1))
        preemptions = tuple(
            Preempt(lease.id, lease.token, lease.request_id, self.preempts[lease.request_id], "for the test")
            for lease in snapshot.leases
            if lease.request_id in self.preempts and lease.state is not LeaseState.PREEMPTED
        )
        return Plan(waits, preemptions)


class FakePreemptor:
    def __init__(self) -> None:
        self.preempted: list[tuple[str, str]] = []
        self.is_broken = False

    def preempt(self, lease: Lease, order: Preempt) -> None:
        if self.is_broken:
            raise RuntimeError("no way to tell")
        self.preempted.append((lease.request_id, order.cause))


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.record([WorkerSeen(a_worker()), *(RequestSubmitted(a_pending(key)) for key in ("r1", "r2", "r3"))], EPOCH)
    places = (a_place("r1", **{"GPU-0": 1000}), a_place("r2", **{"GPU-1": 1000}))
    assert len(store.commit(Plan(places), EPOCH, EPOCH + timedelta(hours=1)).leases) == 2
    return store


def states(store) -> dict[str, LeaseState]:
    return {lease.request_id: lease.state for lease in store.snapshot().leases}


def test_a_preempted_lease_is_marked_and_its_holder_notified_once(store):
    policy, preemptor = PlannedPolicy(), FakePreemptor()
    policy.preempts = {"r1": "r3"}
    cycle = Cycle(store, policy, FakeEngine(), 60, preemptor=preemptor)
    cycle.run(EPOCH)
    assert preemptor.preempted == [("r1", "for the test")]
    assert states(store) == {"r1": LeaseState.PREEMPTED, "r2": LeaseState.GRANTED}
    assert store.snapshot().used("worker-a", "GPU-0").share_milli == 1000
    store.record([RequestSubmitted(a_pending("r4"))], EPOCH)
    cycle.run(EPOCH)
    assert preemptor.preempted == [("r1", "for the test")]


def test_nothing_is_preempted_without_a_preemptor(store, caplog):
    policy = PlannedPolicy()
    policy.preempts = {"r1": "r3"}
    with caplog.at_level(logging.WARNING):
        Cycle(store, policy, FakeEngine(), 60).run(EPOCH)
    assert states(store)["r1"] is LeaseState.GRANTED
    assert "nothing here can be preempted" in caplog.text
    assert [snapshot.can_preempt for snapshot in policy.seen] == [False]


def test_a_lease_of_another_scheduler_is_not_preempted(store):
    policy, preemptor, engine = PlannedPolicy(), FakePreemptor(), FakeEngine()
    policy.preempts, engine.foreign = {"r1": "r3", "r2": None}, {"r1"}
    Cycle(store, policy, engine, 60, preemptor=preemptor).run(EPOCH)
    assert preemptor.preempted == [("r2", "for the test")]


def test_a_holder_that_cannot_be_notified_stops_no_other_decision(store, caplog):
    policy, preemptor = PlannedPolicy(), FakePreemptor()
    policy.preempts, preemptor.is_broken = {"r1": "r3"}, True
    with caplog.at_level(logging.WARNING):
        result = Cycle(store, policy, FakeEngine(), 60, preemptor=preemptor).run(EPOCH)
    assert [decision.request_id for decision in result.plan.decisions if isinstance(decision, Wait)] == ["r3"]
    assert "could not be told to end: no way to tell" in caplog.text


def test_a_policy_with_a_period_decides_again_after_it(store):
    policy = PlannedPolicy(period_s=30)
    cycle = Cycle(store, policy, FakeEngine(), 60)
    for second in (0, 10, 29, 30, 45, 60):
        cycle.run(EPOCH + timedelta(seconds=second))
    assert len(policy.seen) == 3


def test_new_estimates_are_seen_and_decided_on(store):
    known = [Estimates()]
    policy = PlannedPolicy()
    cycle = Cycle(
        store, policy, FakeEngine(), 60, policy_context=lambda snapshot: replace(snapshot, estimates=known[0])
    )
    cycle.run(EPOCH)
    cycle.run(EPOCH)
    known[0] = Estimates(works={("dag", "r1"): Interval(1, 2, 3)})
    cycle.run(EPOCH)
    assert [snapshot.estimates.works for snapshot in policy.seen] == [{}, {("dag", "r1"): Interval(1, 2, 3)}]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"lease_id": "r9.9"}, "it preempts lease r9.9 of r1, which is not there"),
        ({"token": 77}, "it preempts lease r1.1 of r1, which is not there"),
        ({"request_id": "r2"}, "it preempts lease r1.1 of r2, which is not there"),
        ({}, None),
    ],
)
def test_only_live_leases_can_be_preempted(store, change, fault):
    snapshot = replace(store.snapshot(), can_preempt=True)
    lease = snapshot.leases[0]
    preempt = replace(Preempt(lease.id, lease.token, "r1", "r3", "why"), **change)
    wait = PlannedPolicy().decide(snapshot, EPOCH).decisions
    assert plan_faults(snapshot, Plan(wait, (preempt,))) == ([fault] if fault else [])
    assert f"lease {preempt.lease_id} is preempted 2 times" in plan_faults(snapshot, Plan(wait, (preempt, preempt)))


class GangPolicy:
    """Places each member on the GPU of its number."""

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        return Plan(tuple(a_place(request.id, **{f"GPU-{request.id[-1]}": 1000}) for request in snapshot.pending))


def a_gang() -> MemoryStore:
    store = MemoryStore()
    members = [a_pending(f"m{n}", gang="g", gang_size=2) for n in range(2)]
    store.record([WorkerSeen(a_worker()), *map(RequestSubmitted, members)], EPOCH)
    return store


def test_a_gang_is_dispatched_whole():
    engine = FakeEngine()
    Cycle(a_gang(), GangPolicy(), engine, 60).run(EPOCH)
    assert [lease.request_id for lease in engine.dispatched] == ["m0", "m1"]


def test_a_partially_granted_gang_is_not_dispatched_and_waits_again():
    store, engine = a_gang(), FakeEngine()
    result = Cycle(RejectingStore(store, {"m1": 9}), GangPolicy(), engine, 60).run(EPOCH)
    assert engine.dispatched == []
    assert result.dispatched == ()
    assert [pending.id for pending in store.snapshot().pending] == ["m0", "m1"]
    assert store.snapshot().leases == ()


def test_a_plan_that_places_a_gang_in_part_does_not_fit():
    snapshot = a_gang().snapshot()
    wait = Wait("m1", 1, Reason(ReasonCode.BUSY, "a", "b"), Account("test", "waits"))
    plan = Plan((a_place("m0", **{"GPU-0": 1000}), wait))
    assert plan_faults(snapshot, plan) == ["gang g of 2 is placed in part: 1 now, 0 before"]


LATE = EPOCH + timedelta(seconds=61)


def a_store_with_a_lease() -> tuple[MemoryStore, FakeEngine, Lease]:
    store, engine = MemoryStore(), FakeEngine()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("r0"))], EPOCH)
    Cycle(store, Fifo(), engine, 60).run(EPOCH)
    return store, engine, engine.dispatched[0]


@pytest.mark.parametrize(
    ("liveness", "state"),
    [
        (Liveness.GONE, LeaseState.EVICTED),
        (Liveness.UNKNOWN, LeaseState.EXPIRED),
        (Liveness.ALIVE, LeaseState.EXPIRED),
    ],
)
def test_an_expired_lease_keeps_its_devices_until_its_process_is_gone(liveness: Liveness, state: LeaseState) -> None:
    store, engine, lease = a_store_with_a_lease()
    engine.alive = {"r0": liveness}
    assert reap(store, engine, store.snapshot().leases, LATE) == (lease.model_copy(update={"state": state}),)
    held = store.snapshot().used("worker-a", "GPU-0").share_milli
    assert held == (1000 if state is LeaseState.EXPIRED else 0)


def test_a_lease_that_was_renewed_in_time_stays() -> None:
    store, engine, lease = a_store_with_a_lease()
    engine.alive = {"r0": Liveness.GONE}
    assert reap(store, engine, store.snapshot().leases, EPOCH + timedelta(seconds=59)) == ()
    assert store.snapshot().leases == (lease,)


def test_the_engine_is_asked_about_an_expired_lease_in_every_cycle() -> None:
    store, engine, _ = a_store_with_a_lease()
    assert [moved.state for moved in reap(store, engine, store.snapshot().leases, LATE)] == [LeaseState.EXPIRED]
    assert reap(store, engine, store.snapshot().leases, LATE) == ()
    engine.alive = {"r0": Liveness.GONE}
    assert [moved.state for moved in reap(store, engine, store.snapshot().leases, LATE)] == [LeaseState.EVICTED]


def test_a_lease_that_ended_meanwhile_is_skipped() -> None:
    store, engine, lease = a_store_with_a_lease()
    stale = store.snapshot().leases
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    assert reap(store, engine, stale, LATE) == ()


def test_a_lease_keeps_its_devices_while_the_engine_cannot_answer(caplog: pytest.LogCaptureFixture) -> None:
    class DeafEngine(FakeEngine):
        def liveness(self, lease: Lease) -> Liveness:
            raise OSError("no answer")

    store, _, lease = a_store_with_a_lease()
    moved = reap(store, DeafEngine(), store.snapshot().leases, LATE)
    assert [lease.state for lease in moved] == [LeaseState.EXPIRED]
    assert [record.getMessage() for record in caplog.records] == [
        f"Lease {lease.id} keeps its devices, since the engine can't tell whether its process runs: no answer"
    ]


def test_a_worker_without_heartbeats_is_lost_once() -> None:
    workers = (a_worker("late"), a_worker("seen"), a_worker("lost", state=WorkerState.LOST), a_worker("new"))
    seen = {"late": EPOCH, "seen": EPOCH + timedelta(seconds=2), "lost": EPOCH}
    assert lost_workers(workers, seen, (), None, LATE, 60) == (WorkerLost("late"),)


def test_a_missing_heartbeat_counts_only_while_an_api_server_runs() -> None:
    workers = (a_worker("silent"), a_worker("heard"), a_worker("scheduler"))
    seen = {"silent": EPOCH, "heard": LATE, "scheduler": EPOCH}
    agents = ("silent", "heard")
    away, back = ServerHeartbeat(EPOCH, EPOCH + timedelta(seconds=2)), ServerHeartbeat(LATE, LATE)
    for server in (None, away, back):
        assert lost_workers(workers, seen, agents, server, LATE, 15) == (WorkerLost("scheduler"),)
    there = ServerHeartbeat(EPOCH, LATE)
    assert lost_workers(workers, seen, agents, there, LATE, 15) == (WorkerLost("silent"), WorkerLost("scheduler"))


def a_lost(id: str, **fields: object) -> Worker:
    return a_worker(id, **{"state": WorkerState.LOST} | fields)


def test_lost_workers_are_forgettable_when_they_were_not_seen_for_long() -> None:
    workers = (a_lost("leased"), a_lost("old"), a_lost("older"), a_lost("recent"), a_worker("silent"))
    snapshot = Snapshot(1, workers, leases=(a_lease("r1", "leased", **{"GPU-0": 1000}),))
    seen = {worker.id: EPOCH for worker in workers} | {"recent": LATE}
    assert forgettable_workers(snapshot, seen, LATE, LATE) == ("old", "older")
    assert forgettable_workers(snapshot, seen, EPOCH, EPOCH) == ()


def test_the_last_worker_of_a_type_and_its_labels_is_kept_for_longer() -> None:
    large, rack = {"labels": {"hetero/type": "large"}}, {"labels": {"rack": "7"}}
    workers = (a_lost("a"), a_lost("b"), a_lost("c", **large), a_lost("d", **rack), a_lost("e", **rack))
    seen = {worker.id: EPOCH + timedelta(seconds=at) for at, worker in enumerate(workers)}
    assert forgettable_workers(Snapshot(1, workers), seen, LATE, EPOCH) == ("a", "d")
    online = (*workers, a_worker("f"))
    assert forgettable_workers(Snapshot(1, online), seen | {"f": EPOCH}, LATE, EPOCH) == ("a", "b", "d")
    assert forgettable_workers(Snapshot(1, workers), seen, LATE, LATE) == ("a", "b", "c", "d", "e")


def test_only_the_site_of_a_clusters_nodes_counts() -> None:
    nodes = tuple(
        a_lost(f"node-{number}", engine="kubernetes", labels={"kubernetes.io/hostname": f"node-{number}"} | site)
        for number, site in enumerate(({}, {}, {"hetero/site": "oslo"}))
    )
    seen = {node.id: EPOCH for node in nodes}
    assert forgettable_workers(Snapshot(1, nodes), seen, LATE, EPOCH) == ("node-0",)


def test_a_worker_with_a_hold_of_a_person_or_an_error_is_kept_for_longer() -> None:
    kinds = {kind.value: kind for kind in HoldKind}
    holds = tuple(Hold(name, "", kind, "new fan", EPOCH, "it is lifted") for name, kind in kinds.items())
    snapshot = Snapshot(1, (a_worker("online"), *map(a_lost, sorted(kinds))), holds=holds)
    seen = dict.fromkeys([*kinds, "online"], EPOCH)
    assert forgettable_workers(snapshot, seen, LATE, EPOCH) == ("leaving", "reclaimed")
    assert forgettable_workers(snapshot, seen, LATE, LATE) == ("drained", "leaving", "quarantined", "reclaimed")
