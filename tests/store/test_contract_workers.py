"""In every store, workers come and go, with their devices and readings."""

from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.store import WorkerAlive, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_place, a_worker
from tests.store.contract import GIB, IN_MEMORY_TOO, LATER, MUCH_LATER, grant, place, prepare, release


def test_a_new_store_is_empty(store):
    snapshot = store.snapshot()
    assert (snapshot.sequence, snapshot.workers, dict(snapshot.usage), snapshot.pending, snapshot.leases) == (
        0,
        (),
        {},
        (),
        (),
    )
    assert (store.telemetry(), store.last_seen(), store.request_history("d", "r", "t")) == ({}, {}, None)
    assert store.prune(MUCH_LATER) == 0


def test_workers_appear_by_id_with_their_devices_in_order(store):
    a = a_worker("a", (a_device("Z"), a_cpu(), a_device("A", details={"sockets": 2}, peers=("Z",))), labels={"x": "y"})
    b = a_worker("b")
    store.record([WorkerSeen(b), WorkerSeen(a)], EPOCH)
    assert store.snapshot().workers == (a, b)
    assert store.last_seen() == {"a": EPOCH, "b": EPOCH}


@IN_MEMORY_TOO
def test_unknown_memory_stays_unknown_and_its_shares_are_leased(store):
    unmeasured = a_device(memory=None)
    prepare(store, "r1", worker=a_worker(devices=(unmeasured, a_cpu())))
    (lease,) = grant(store, place("r1", Claim(device_id="GPU-0", share_milli=500)))
    snapshot = store.snapshot()
    assert snapshot.workers[0].devices == (unmeasured, a_cpu())
    assert snapshot.used("worker-a", "GPU-0").share_milli == 500
    release(store, lease)
    assert store.snapshot().used("worker-a", "GPU-0").share_milli == 0


@IN_MEMORY_TOO
def test_a_cpu_of_unknown_memory_lends_none(store):
    prepare(store, "r1", "r2", worker=a_worker(devices=(a_cpu().model_copy(update={"memory_bytes": None}),)))
    taken = [place(key, Claim(device_id="cpu", share_milli=1000, memory_bytes=n)) for n, key in enumerate(("r1", "r2"))]
    made = store.commit(Plan(tuple(taken)), EPOCH, LATER)
    assert [lease.request_id for lease in made.leases] == ["r1"]


def test_a_heartbeat_without_change_leaves_the_snapshot_as_it_is(store):
    prepare(store, "r1")
    before = store.snapshot()
    reading = Telemetry(device_id="GPU-0", utilization=0.5, memory_free_bytes=GIB)
    store.record([WorkerSeen(a_worker(), (reading,))], LATER)
    assert store.snapshot() is before
    assert store.last_seen() == {"worker-a": LATER}
    assert store.telemetry() == {("worker-a", "GPU-0"): reading}


def test_a_heartbeat_without_readings_keeps_the_last_ones(store):
    first, second = (Telemetry(device_id=key, power_w=70.5) for key in ("GPU-0", "GPU-1"))
    store.record([WorkerSeen(a_worker(), (first,))], EPOCH)
    store.record([WorkerSeen(a_worker())], LATER)
    assert store.telemetry() == {("worker-a", "GPU-0"): first}
    store.record([WorkerSeen(a_worker(), (second,)), WorkerSeen(a_worker())], LATER)
    assert store.telemetry() == {("worker-a", "GPU-1"): second}


def test_a_heartbeat_without_inventory_costs_no_snapshot_and_brings_no_lost_worker_back(store):
    prepare(store)
    before = store.snapshot()
    reading = Telemetry(device_id="GPU-0", utilization=0.5)
    store.record([WorkerAlive("worker-a", (reading,)), WorkerAlive("never seen", (reading,))], LATER)
    assert store.snapshot() is before
    assert store.last_seen() == {"worker-a": LATER}
    assert store.telemetry() == {("worker-a", "GPU-0"): reading}
    store.record([WorkerLost("worker-a")], LATER)
    assert store.snapshot().workers[0].state is WorkerState.LOST
    store.record([WorkerAlive("worker-a")], MUCH_LATER)
    assert store.snapshot().workers[0].state is WorkerState.LOST
    assert store.last_seen() == {"worker-a": LATER}


@IN_MEMORY_TOO
def test_a_changed_inventory_replaces_the_old_one(store):
    prepare(store)
    before = store.snapshot()
    changed = a_worker(devices=(a_cpu(), a_device("GPU-1", index=1, problem="hot", leasable=False), a_device("GPU-2")))
    store.record([WorkerSeen(changed)], LATER)
    assert store.snapshot().workers == (changed,)
    assert store.snapshot().sequence > before.sequence
    relabelled = changed.model_copy(update={"labels": {"zone": "b"}})
    store.record([WorkerSeen(changed), WorkerSeen(relabelled)], LATER)
    assert store.snapshot().workers == (relabelled,)


@IN_MEMORY_TOO
def test_a_worker_that_is_lost_comes_back_when_it_is_seen(store):
    prepare(store)
    lost = a_worker(state=WorkerState.LOST)
    store.record([WorkerLost("worker-a"), WorkerLost("never seen")], LATER)
    assert store.snapshot().workers == (lost,)
    before = store.snapshot()
    store.record([WorkerLost("worker-a")], LATER)
    assert store.snapshot() is before
    store.record([WorkerSeen(lost)], LATER)
    assert store.snapshot().workers == (a_worker(),)


@IN_MEMORY_TOO
def test_a_device_that_vanishes_idle_goes_at_once(store):
    prepare(store, "r1")
    release(store, grant(store, a_place("r1", **{"GPU-1": 1000}))[0])
    less = a_worker(devices=(a_cpu(), a_device("GPU-0")))
    store.record([WorkerSeen(less)], LATER)
    assert store.snapshot().workers == (less,)
    assert dict(store.snapshot().usage) == {}


@IN_MEMORY_TOO
def test_a_device_that_vanishes_leased_stays_unleasable_until_its_lease_ends(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 500}))
    less = a_worker(devices=(a_cpu(), a_device("GPU-1", index=1)))
    for now in (LATER, MUCH_LATER):  # the second time it is a heartbeat without change
        store.record([WorkerSeen(less)], now)
        problem = "not seen since 2026-01-01 00:00:00 UTC; leased until its task has ended"
        vanished = a_device("GPU-0", leasable=False, problem=problem)
        assert store.snapshot().workers == (less.model_copy(update={"devices": (*less.devices, vanished)}),)
        assert store.snapshot().used("worker-a", "GPU-0") == DeviceUsage(500, 0, EPOCH)
    relabelled = less.model_copy(update={"labels": {"zone": "b"}})
    store.record([WorkerSeen(relabelled)], MUCH_LATER)
    assert store.snapshot().workers[0].devices[-1] == vanished
    assert store.commit(Plan((a_place("r2", **{"GPU-0": 500}),)), LATER, LATER).raced == ("r2",)
    release(store, lease)
    assert store.snapshot().workers == (relabelled,)
    assert dict(store.snapshot().usage) == {}


@IN_MEMORY_TOO
def test_a_device_that_vanished_and_is_back_is_leasable_again(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 500}))
    store.record([WorkerSeen(a_worker(devices=(a_cpu(),))), WorkerSeen(a_worker())], LATER)
    assert store.snapshot().workers == (a_worker(),)
    (second,) = grant(store, a_place("r2", **{"GPU-0": 500}))
    release(store, lease)
    assert store.snapshot().used("worker-a", "GPU-0").share_milli == 500
    release(store, second)
    assert store.snapshot().workers == (a_worker(),)


@IN_MEMORY_TOO
def test_a_cpu_that_shrinks_below_what_is_leased_gives_nothing_until_enough_is_free(store):
    prepare(store, "r1", "r2", "r3", "r4")
    first, second = grant(store, a_place("r1", cpu=2000), a_place("r2", cpu=4000))
    small = a_worker(devices=(a_cpu(cores=4),))
    store.record([WorkerSeen(small)], LATER)
    assert store.snapshot().workers == (small,)
    assert store.snapshot().used("worker-a", "cpu").share_milli == 6000
    one_core = Plan((a_place("r3", cpu=1000),))
    assert store.commit(one_core, LATER, LATER).raced == ("r3",)
    release(store, first)
    assert store.commit(one_core, LATER, LATER).raced == ("r3",)
    release(store, second)
    (third,) = grant(store, a_place("r3", cpu=4000))
    assert third.claims[0].cores == (0, 1, 2, 3)
    assert store.commit(Plan((a_place("r4", cpu=1000),)), LATER, LATER).raced == ("r4",)


@IN_MEMORY_TOO
def test_host_memory_that_shrinks_below_what_is_leased_gives_nothing_until_enough_is_free(store):
    prepare(store, "r1", "r2", "r3", worker=a_worker(devices=(a_cpu(memory="64GiB"),)))
    (lease,) = grant(store, place("r1", Claim(device_id="cpu", share_milli=0, memory_bytes=40 * GIB)))
    store.record([WorkerSeen(a_worker(devices=(a_cpu(memory="32GiB"),)))], LATER)
    one_gib = Plan((place("r2", Claim(device_id="cpu", share_milli=0, memory_bytes=GIB)),))
    assert store.commit(one_gib, LATER, LATER).raced == ("r2",)
    release(store, lease)
    grant(store, place("r2", Claim(device_id="cpu", share_milli=0, memory_bytes=32 * GIB)))
    assert store.commit(Plan((place("r3", *one_gib.places[0].claims),)), LATER, LATER).raced == ("r3",)
