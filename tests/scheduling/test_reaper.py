from __future__ import annotations

from datetime import timedelta

import pytest

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.model.heartbeat import ServerHeartbeat
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.scheduling.reaper import forgettable_workers, lost_workers, reap
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_lease, a_pending, a_worker, move_lease

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
