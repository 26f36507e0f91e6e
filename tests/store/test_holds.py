"""Holds on devices, in every store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.health.transitions import HealthChanged
from hetero_airflow.model.devices.health import NO_ERRORS, CountedError, DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import (
    HealthNoted,
    HoldLifted,
    HoldPlaced,
    RequestSubmitted,
    WorkerLost,
    WorkerSeen,
)
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

LATER = EPOCH + timedelta(minutes=1)
PROBLEM = "drained since 2026-01-01 00:00:00 UTC: new fan; back when undrained"


def drained(device_id="GPU-0", worker_id="worker-a", cause="new fan", moves=False) -> Hold:
    return Hold(worker_id, device_id, HoldKind.DRAINED, cause, EPOCH, "undrained", moves=moves)


def quarantined(device_id="GPU-0", worker_id="worker-a") -> Hold:
    return Hold(worker_id, device_id, HoldKind.QUARANTINED, "XID 79", EPOCH, "a burn-in passes", LATER)


def cleared(hold: Hold) -> HoldLifted:
    return HoldLifted(hold.worker_id, hold.device_id, hold.kind)


def problems(store) -> dict[str, str | None]:
    """Device id → problem, for the devices that can't be leased."""
    (worker,) = store.snapshot().workers
    return {device.id: device.problem for device in worker.devices if not device.leasable}


@pytest.fixture
def fleet(store):
    """One worker with two A100, and two waiting requests."""
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("r1")), RequestSubmitted(a_pending("r2"))], EPOCH)
    return store


def test_a_device_on_hold_is_not_leased_and_says_why_since_when_and_until_what(fleet):
    fleet.record([HoldPlaced(drained())], EPOCH)
    assert fleet.snapshot().holds == (drained(),)
    assert problems(fleet) == {"GPU-0": PROBLEM}
    plan = Plan((a_place("r1", **{"GPU-0": 1000}), a_place("r2", **{"GPU-1": 1000})))
    commit = fleet.commit(plan, EPOCH, LATER)
    assert (commit.raced, [lease.request_id for lease in commit.leases]) == (("r1",), ["r2"])


def test_a_hold_that_is_taken_off_leaves_no_trace(fleet):
    before = fleet.snapshot()
    fleet.record([HoldPlaced(drained())], EPOCH)
    fleet.record([cleared(drained())], LATER)
    after = fleet.snapshot()
    assert (after.workers, after.holds) == (before.workers, ())
    assert fleet.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), LATER, LATER).raced == ()


def test_the_sequence_moves_only_when_a_hold_changes_something(fleet):
    fleet.record([HoldPlaced(drained())], EPOCH)
    before = fleet.snapshot()
    fleet.record([HoldPlaced(drained()), cleared(quarantined()), cleared(drained("GPU-1"))], LATER)
    fleet.record([HealthNoted("worker-a", "GPU-0", DeviceHealth(strikes=1, since=EPOCH))], LATER)
    assert fleet.snapshot() is before
    moving = drained(moves=True)
    fleet.record([HoldPlaced(moving)], LATER)
    assert fleet.snapshot().holds == (moving,)
    assert fleet.snapshot().sequence == before.sequence + 1


def test_a_hold_on_the_worker_applies_to_all_its_devices(fleet):
    fleet.record([HoldPlaced(drained(""))], EPOCH)
    assert problems(fleet) == dict.fromkeys(("cpu", "GPU-0", "GPU-1"), PROBLEM)
    assert fleet.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, LATER).raced == ("r1",)


def test_a_hold_on_a_gpu_in_mig_mode_applies_to_its_instances(store):
    parent = a_device("GPU-0", leasable=False, problem="In MIG mode")
    instances = tuple(a_device(f"MIG-{n}", index=n, partition="1g.10gb", parent="GPU-0") for n in range(2))
    store.record(
        [WorkerSeen(a_worker(devices=(parent, *instances, a_device("GPU-1")))), RequestSubmitted(a_pending())], EPOCH
    )
    store.record([HoldPlaced(quarantined())], EPOCH)
    barred = f"{quarantined()}"
    assert problems(store) == {"GPU-0": f"{barred}. In MIG mode", "MIG-0": barred, "MIG-1": barred}
    assert store.commit(Plan((a_place("r1", **{"MIG-1": 1000}),)), EPOCH, LATER).raced == ("r1",)


def test_holds_outlive_new_inventories_and_lost_workers(fleet):
    fleet.record([HoldPlaced(drained())], EPOCH)
    fleet.record([WorkerSeen(a_worker(labels={"zone": "b"}))], LATER)
    assert problems(fleet) == {"GPU-0": PROBLEM}
    fleet.record([WorkerSeen(a_worker(devices=(a_cpu(), a_device("GPU-1"))))], LATER)
    assert (problems(fleet), fleet.snapshot().holds) == ({}, (drained(),))
    fleet.record([WorkerLost("worker-a")], LATER)
    assert fleet.snapshot().workers[0].state is WorkerState.LOST
    fleet.record([WorkerSeen(a_worker())], LATER)
    assert problems(fleet) == {"GPU-0": PROBLEM}


def test_what_the_probe_says_against_a_device_is_reported_too_and_stays_when_the_hold_goes(fleet):
    sick = a_worker(devices=(a_device("GPU-0", leasable=False, problem="too hot"), a_device("GPU-1")))
    fleet.record([WorkerSeen(sick), HoldPlaced(drained())], LATER)
    assert problems(fleet) == {"GPU-0": f"{PROBLEM}. too hot"}
    fleet.record([cleared(drained())], LATER)
    assert fleet.snapshot().workers == (sick,)


def test_a_hold_on_a_worker_that_is_not_known_applies_once_it_is_seen(store):
    store.record([HoldPlaced(drained())], EPOCH)
    assert (store.snapshot().sequence, store.snapshot().holds) == (0, ())
    store.record([WorkerSeen(a_worker())], LATER)
    assert (problems(store), store.snapshot().holds) == ({"GPU-0": PROBLEM}, (drained(),))


def test_each_kind_of_hold_stands_by_itself(fleet):
    fleet.record([HoldPlaced(quarantined()), HoldPlaced(drained())], EPOCH)
    assert fleet.snapshot().holds == (drained(), quarantined())
    assert problems(fleet) == {"GPU-0": f"{drained()}. {quarantined()}"}
    fleet.record([cleared(drained())], LATER)
    assert problems(fleet) == {"GPU-0": str(quarantined())}


def test_leases_go_on_and_what_they_free_is_not_leased_again(fleet):
    (lease,) = fleet.commit(Plan((a_place("r1", **{"GPU-0": 500}),)), EPOCH, LATER).leases
    fleet.record([HoldPlaced(drained())], EPOCH)
    assert fleet.snapshot().leases == (lease,)
    assert fleet.renew([(lease.id, lease.token)], LATER) == frozenset()
    half = Plan((a_place("r2", **{"GPU-0": 500}),))
    assert fleet.commit(half, EPOCH, LATER).raced == ("r2",)
    move_lease(fleet, lease.id, lease.token, LeaseState.RELEASED, LATER)
    assert fleet.snapshot().used("worker-a", "GPU-0").share_milli == 0
    assert fleet.commit(half, EPOCH, LATER).raced == ("r2",)


def test_holds_of_several_workers_come_in_order(store):
    store.record([WorkerSeen(a_worker("b")), WorkerSeen(a_worker("a"))], EPOCH)
    holds = [drained("GPU-1", "b"), drained("", "b"), quarantined("GPU-1", "a"), drained("GPU-1", "a")]
    store.record([*map(HoldPlaced, holds)], EPOCH)
    assert store.snapshot().holds == (holds[3], holds[2], holds[1], holds[0])


def test_words_that_a_database_refuses_are_made_harmless(fleet):
    fleet.record([HoldPlaced(drained(cause="a\0b"))], EPOCH)
    fleet.record([HealthNoted("worker-a", "GPU-0", DeviceHealth(cause="a\0b", strikes=1))], EPOCH)
    assert "\0" not in fleet.snapshot().holds[0].cause
    assert fleet.health()["worker-a", "GPU-0"].strikes == 1


def test_the_health_of_devices_is_remembered_until_they_are_well(store):
    errors = (CountedError("counted", EPOCH), CountedError("task", LATER, "dag.train"))
    sick = DeviceHealth(HealthState.QUARANTINED, 2, EPOCH, LATER, "XID 79", errors)
    store.record(
        [HealthNoted("worker-a", "GPU-0", sick), HealthNoted("worker-b", "cpu", DeviceHealth(strikes=1))], EPOCH
    )
    assert store.health() == {("worker-a", "GPU-0"): sick, ("worker-b", "cpu"): DeviceHealth(strikes=1)}
    worse = replace(sick, strikes=3)
    store.record([HealthNoted("worker-a", "GPU-0", worse), HealthNoted("worker-b", "cpu", NO_ERRORS)], LATER)
    assert store.health() == {("worker-a", "GPU-0"): worse}


def test_a_change_of_a_devices_health_is_made_on_what_is_there_and_its_hold_follows(fleet):
    def strike(health):
        after = replace(health, state=HealthState.QUARANTINED, strikes=health.strikes + 1)
        return after, quarantined() if after.strikes == 2 else None

    noted = HealthChanged("worker-a", "GPU-0", strike)
    fleet.record([noted], EPOCH)
    assert (fleet.health()["worker-a", "GPU-0"].strikes, fleet.snapshot().holds) == (1, ())
    fleet.record([noted], LATER)
    assert (fleet.health()["worker-a", "GPU-0"].strikes, fleet.snapshot().holds) == (2, (quarantined(),))
    before = fleet.snapshot()
    fleet.record([HealthChanged("worker-a", "GPU-0", lambda health: (health, None))], LATER)
    assert fleet.snapshot() is before
    fleet.record([HealthChanged("worker-a", "GPU-0", lambda _: (NO_ERRORS, None))], LATER)
    assert (fleet.health(), fleet.snapshot().holds, problems(fleet)) == ({}, (), {})


def test_changes_that_many_make_at_the_same_moment_are_all_made(engine):
    def count(health):
        return replace(health, strikes=health.strikes + 1), None

    def make(_):
        SqlStore(engine).record([HealthChanged("worker-a", "GPU-0", count)], EPOCH)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(40)))
    assert SqlStore(engine).health()["worker-a", "GPU-0"].strikes == 40


def test_another_process_sees_holds_as_they_come_and_go(engine):
    store, other_store = SqlStore(engine), SqlStore(engine)
    store.record([WorkerSeen(a_worker())], EPOCH)
    assert problems(other_store) == {}
    store.record([HoldPlaced(drained())], EPOCH)
    assert problems(other_store) == {"GPU-0": PROBLEM}
    assert problems(SqlStore(engine)) == {"GPU-0": PROBLEM}
    store.record([cleared(drained())], LATER)
    assert (problems(other_store), other_store.snapshot().holds) == ({}, ())
