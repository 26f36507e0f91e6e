from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from hetero_airflow.errors import InvalidTransition, LeaseLost, LeaseNotFound
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.lease import TRANSITIONS, Claim, Lease, LeaseState
from hetero_airflow.model.plan import (
    Account,
    AlternativeAccount,
    Candidate,
    Place,
    Plan,
    Reason,
    ReasonCode,
    Refuse,
    Wait,
)
from hetero_airflow.model.snapshot import Usage
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.store import Commit, Delayed, Saved, Submitted, Withdrawn, WorkerAlive, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

LATER = EPOCH + timedelta(seconds=60)
MUCH_LATER = EPOCH + timedelta(days=2)
GIB = 2**30
BUSY = Reason(ReasonCode.BUSY, "1 × gpu", "0 free")
ACCOUNT = Account(
    "fifo",
    "no device is free",
    (AlternativeAccount("1 × gpu", 1, ((1, BUSY),), (Candidate("worker-a", ("GPU-0",), 0.5, {"fit": 0.5}),)),),
)
ACCOUNT_JSON = {
    "policy": "fifo",
    "summary": "no device is free",
    "alternatives": [
        {
            "asked": "1 × gpu",
            "evaluated": 1,
            "filtered": [[1, {"code": "busy", "asked": "1 × gpu", "found": "0 free"}]],
            "candidates": [{"worker_id": "worker-a", "device_ids": ["GPU-0"], "score": 0.5, "terms": {"fit": 0.5}}],
        }
    ],
}


def wait(request_id="r1", position=1, reason=BUSY, account=ACCOUNT) -> Wait:
    return Wait(request_id, position, reason, account)


def place(request_id="r1", *claims: Claim, worker_id="worker-a") -> Place:
    return Place(request_id, worker_id, 0, claims, ACCOUNT)


def prepare(store, *requests: str, worker=None):
    """A store with one worker, and requests that wait, submitted a second apart."""
    pending = [Submitted(a_pending(key, at_s=at)) for at, key in enumerate(requests)]
    store.record([WorkerSeen(worker or a_worker()), *pending], EPOCH)
    return store


def grant(store, *places: Place) -> tuple[Lease, ...]:
    made = store.commit(Plan(places), EPOCH, LATER)
    assert made.refused == ()
    return made.leases


def release(store, lease: Lease, now=LATER, cause="") -> Lease:
    return move_lease(store, lease.id, lease.token, LeaseState.RELEASED, now, cause)


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_new_store_is_empty(store):
    found = store.snapshot()
    assert (found.sequence, found.workers, dict(found.usage), found.pending, found.leases) == (0, (), {}, (), ())
    assert (store.telemetry(), store.last_seen(), store.story("d", "r", "t")) == ({}, {}, None)
    assert store.prune(MUCH_LATER) == 0


def test_workers_appear_by_id_with_their_devices_in_order(store):
    a = a_worker("a", (a_device("Z"), a_cpu(), a_device("A", details={"sockets": 2}, peers=("Z",))), labels={"x": "y"})
    b = a_worker("b")
    store.record([WorkerSeen(b), WorkerSeen(a)], EPOCH)
    assert store.snapshot().workers == (a, b)
    assert store.last_seen() == {"a": EPOCH, "b": EPOCH}


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


def test_a_device_that_vanishes_idle_goes_at_once(store):
    prepare(store, "r1")
    release(store, grant(store, a_place("r1", **{"GPU-1": 1000}))[0])
    less = a_worker(devices=(a_cpu(), a_device("GPU-0")))
    store.record([WorkerSeen(less)], LATER)
    assert store.snapshot().workers == (less,)
    assert dict(store.snapshot().usage) == {}


def test_a_device_that_vanishes_leased_stays_unleasable_until_its_lease_ends(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 500}))
    less = a_worker(devices=(a_cpu(), a_device("GPU-1", index=1)))
    for now in (LATER, MUCH_LATER):  # the second time it is a heartbeat without change
        store.record([WorkerSeen(less)], now)
        problem = "not seen since 2026-01-01 00:00:00 UTC; leased until its task has ended"
        gone = a_device("GPU-0", leasable=False, problem=problem)
        assert store.snapshot().workers == (less.model_copy(update={"devices": (*less.devices, gone)}),)
        assert store.snapshot().used("worker-a", "GPU-0") == Usage(500, 0, EPOCH)
    relabelled = less.model_copy(update={"labels": {"zone": "b"}})
    store.record([WorkerSeen(relabelled)], MUCH_LATER)
    assert store.snapshot().workers[0].devices[-1] == gone
    assert store.commit(Plan((a_place("r2", **{"GPU-0": 500}),)), LATER, LATER).refused == ("r2",)
    release(store, lease)
    assert store.snapshot().workers == (relabelled,)
    assert dict(store.snapshot().usage) == {}


def test_a_device_that_vanished_and_is_back_is_leasable_again(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 500}))
    store.record([WorkerSeen(a_worker(devices=(a_cpu(),))), WorkerSeen(a_worker())], LATER)
    assert store.snapshot().workers == (a_worker(),)
    (second,) = grant(store, a_place("r2", **{"GPU-0": 500}))
    release(store, lease)
    assert store.snapshot().used("worker-a", "GPU-0").milli == 500
    release(store, second)
    assert store.snapshot().workers == (a_worker(),)


def test_a_cpu_that_shrinks_below_what_is_leased_gives_nothing_until_enough_is_free(store):
    prepare(store, "r1", "r2", "r3", "r4")
    first, second = grant(store, a_place("r1", cpu=2000), a_place("r2", cpu=4000))
    small = a_worker(devices=(a_cpu(cores=4),))
    store.record([WorkerSeen(small)], LATER)
    assert store.snapshot().workers == (small,)
    assert store.snapshot().used("worker-a", "cpu").milli == 6000
    one_core = Plan((a_place("r3", cpu=1000),))
    assert store.commit(one_core, LATER, LATER).refused == ("r3",)
    release(store, first)
    assert store.commit(one_core, LATER, LATER).refused == ("r3",)
    release(store, second)
    (third,) = grant(store, a_place("r3", cpu=4000))
    assert third.claims[0].cores == (0, 1, 2, 3)
    assert store.commit(Plan((a_place("r4", cpu=1000),)), LATER, LATER).refused == ("r4",)


def test_host_memory_that_shrinks_below_what_is_leased_gives_nothing_until_enough_is_free(store):
    prepare(store, "r1", "r2", "r3", worker=a_worker(devices=(a_cpu(memory="64GiB"),)))
    (lease,) = grant(store, place("r1", Claim(device_id="cpu", milli=0, memory_bytes=40 * GIB)))
    store.record([WorkerSeen(a_worker(devices=(a_cpu(memory="32GiB"),)))], LATER)
    one_gib = Plan((place("r2", Claim(device_id="cpu", milli=0, memory_bytes=GIB)),))
    assert store.commit(one_gib, LATER, LATER).refused == ("r2",)
    release(store, lease)
    grant(store, place("r2", Claim(device_id="cpu", milli=0, memory_bytes=32 * GIB)))
    assert store.commit(Plan((place("r3", *one_gib.places[0].claims),)), LATER, LATER).refused == ("r3",)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_requests_wait_in_the_order_of_submission(store):
    a, b, c = a_pending("a", at_s=2), a_pending("b", ["h100:2", "cpu:4"], at_s=1, weight=7), a_pending("c", at_s=1)
    store.record([Submitted(a), Submitted(c), Submitted(b)], LATER)
    assert store.snapshot().pending == (b, c, a)


def test_a_request_submitted_again_while_it_waits_or_is_placed_changes_nothing(store):
    prepare(store, "r1")
    before = store.snapshot()
    store.record([Submitted(a_pending("r1", at_s=99, weight=9))], LATER)
    assert store.snapshot().pending == before.pending
    grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([Submitted(a_pending("r1", at_s=99))], LATER)
    assert store.snapshot().pending == ()
    assert store.story("dag", "run", "r1").state == "placed"


def test_a_request_that_ended_waits_again_when_it_is_submitted_again(store):
    prepare(store, "r1")
    (first,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    release(store, first)
    again = a_pending("r1", at_s=99, weight=9)
    store.record([Submitted(again)], MUCH_LATER)
    assert store.snapshot().pending == (again,)
    (second,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    assert second.id != first.id
    told = store.story("dag", "run", "r1")
    assert (told.pending, told.state, told.ended_at, told.cause) == (again, "placed", None, "")
    assert told.leases == (first.model_copy(update={"state": LeaseState.RELEASED}), second)


def test_a_request_that_is_withdrawn_waits_no_longer(store):
    prepare(store, "r1", "r2")
    store.record([Withdrawn("r1", "cleared by ada\0"), Withdrawn("unknown", "x")], LATER)
    assert [pending.id for pending in store.snapshot().pending] == ["r2"]
    told = store.story("dag", "run", "r1")
    assert (told.state, told.ended_at, told.cause) == ("ended", LATER, "cleared by ada\N{REPLACEMENT CHARACTER}")
    assert store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), LATER, LATER).refused == ("r1",)


def test_withdrawing_a_request_that_is_placed_or_ended_changes_nothing(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([Withdrawn("r2", "first")], EPOCH)
    before = store.snapshot()
    store.record([Withdrawn("r1", "late"), Withdrawn("r2", "late")], LATER)
    assert store.snapshot() is before
    assert store.snapshot().leases == (lease,)
    assert store.story("dag", "run", "r1").state == "placed"
    assert store.story("dag", "run", "r2").cause == "first"


def test_events_of_one_batch_count_in_their_order(store):
    first, second = a_pending("r1"), a_pending("r1", at_s=5)
    batch = [Withdrawn("r1", "too early"), Submitted(first), Withdrawn("r1", "cleared"), Submitted(second)]
    store.record(batch, EPOCH)
    assert store.snapshot().pending == (second,)
    store.record([Withdrawn("r1", "cleared"), Submitted(first), Withdrawn("r1", "at last")], LATER)
    assert store.snapshot().pending == ()
    assert store.story("dag", "run", "r1").cause == "at last"


# -- placements --------------------------------------------------------------------------------------------------------


def test_a_placement_becomes_a_lease(store):
    prepare(store, "r1", "r2")
    gpu = Claim(device_id="GPU-1", milli=1000, memory_bytes=40 * GIB)
    made = store.commit(
        Plan((place("r1", gpu, Claim(device_id="cpu", milli=2000, memory_bytes=8 * GIB)),)), EPOCH, LATER
    )
    claims = (gpu, Claim(device_id="cpu", milli=2000, memory_bytes=8 * GIB, cores=(0, 1)))
    lease = Lease(
        id="r1.1",
        request_id="r1",
        worker_id="worker-a",
        alternative=0,
        claims=claims,
        token=1,
        state=LeaseState.GRANTED,
        granted_at=EPOCH,
        expires_at=LATER,
    )
    assert made == Commit((lease,), ())
    found = store.snapshot()
    assert found.leases == (lease,)
    assert found.pending == (a_pending("r2", at_s=1),)
    assert found.usage == {
        ("worker-a", "GPU-1"): Usage(1000, 40 * GIB, EPOCH),
        ("worker-a", "cpu"): Usage(2000, 8 * GIB, EPOCH),
    }
    assert found.dag_tokens == {"dag": 1}
    assert store.story("dag", "run", "r1").leases == (lease,)


def test_a_snapshot_stays_what_it_was(store):
    prepare(store, "r1", "r2")
    before = store.snapshot()
    copy = (before.workers, dict(before.usage), before.pending, before.leases, dict(before.dag_tokens))
    grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([WorkerLost("worker-a")], LATER)
    after = store.snapshot()
    assert (before.workers, dict(before.usage), before.pending, before.leases, dict(before.dag_tokens)) == copy
    assert after.sequence > before.sequence
    assert after != before


def test_tokens_grow_and_each_dag_remembers_its_newest(store):
    pending = [Submitted(a_pending(f"r{n}", dag_id=f"dag{n % 2}")) for n in range(4)]
    store.record([WorkerSeen(a_worker()), *pending], EPOCH)
    first = grant(store, a_place("r0", cpu=1000), a_place("r1", cpu=1000))
    second = grant(store, a_place("r2", cpu=1000))
    assert [lease.token for lease in (*first, *second)] == [1, 2, 3]
    assert store.snapshot().dag_tokens == {"dag0": 3, "dag1": 2}
    for lease in first:
        release(store, lease)
    assert store.prune(MUCH_LATER) == 2
    assert store.snapshot().dag_tokens == {"dag0": 3, "dag1": 2}


def test_a_taken_device_is_refused_and_the_other_placements_are_granted(store):
    prepare(store, "r1", "r2", "r3")
    plan = Plan(tuple(a_place(r, **{d: 1000}) for r, d in [("r1", "GPU-0"), ("r2", "GPU-0"), ("r3", "GPU-1")]))
    made = store.commit(plan, EPOCH, LATER)
    assert [(lease.request_id, lease.token) for lease in made.leases] == [("r1", 1), ("r3", 2)]
    assert made.refused == ("r2",)
    assert [pending.id for pending in store.snapshot().pending] == ["r2"]
    assert store.story("dag", "run", "r2").decisions == ()


def test_a_placement_is_granted_whole_or_not_at_all(store):
    prepare(store, "r1", "r2")
    grant(store, a_place("r1", **{"GPU-1": 1000}))
    before = store.snapshot()
    both = Plan((a_place("r2", **{"GPU-0": 1000, "cpu": 3000, "GPU-1": 1000}),))
    assert store.commit(both, LATER, LATER) == Commit((), ("r2",))
    after = store.snapshot()
    assert (after.usage, after.pending, after.leases) == (before.usage, before.pending, before.leases)
    (lease,) = grant(store, a_place("r2", **{"GPU-0": 1000, "cpu": 8000}))
    assert (lease.token, lease.claims[1].cores) == (2, tuple(range(8)))


BAD_PLACEMENTS = {
    "worker unknown": place("r1", Claim(device_id="GPU-0", milli=1000), worker_id="nowhere"),
    "device unknown": place("r1", Claim(device_id="GPU-9", milli=1000)),
    "device not leasable": place("r1", Claim(device_id="GPU-sick", milli=1000)),
    "worker lost": place("r1", Claim(device_id="GPU-0", milli=1000), worker_id="lost"),
    "request unknown": place("unknown", Claim(device_id="GPU-0", milli=1000)),
    "request ended": place("ended", Claim(device_id="GPU-0", milli=1000)),
    "more than a device": place("r1", Claim(device_id="GPU-0", milli=1001)),
    "nothing of a device": place("r1", Claim(device_id="GPU-0", milli=0, memory_bytes=1)),
    "nothing of a cpu": place("r1", Claim(device_id="cpu", milli=0)),
    "less than nothing": place("r1", Claim(device_id="GPU-0", milli=-1000)),
    "memory below zero": place("r1", Claim(device_id="cpu", milli=1000, memory_bytes=-1)),
    "half a core": place("r1", Claim(device_id="cpu", milli=1500)),
    "more cores than there are": place("r1", Claim(device_id="cpu", milli=9000)),
    "more host memory than there is": place("r1", Claim(device_id="cpu", milli=1000, memory_bytes=65 * GIB)),
    "no claim": place("r1"),
    "a device twice": place("r1", Claim(device_id="GPU-0", milli=500), Claim(device_id="GPU-0", milli=500)),
}


@pytest.mark.parametrize("bad", BAD_PLACEMENTS.values(), ids=BAD_PLACEMENTS)
def test_what_can_not_be_granted_is_refused_and_changes_nothing(store, bad):
    worker = a_worker(devices=(*a_worker().devices, a_device("GPU-sick", leasable=False, problem="XID 79")))
    prepare(store, "r1", "r2", "ended", worker=worker)
    store.record([WorkerSeen(a_worker("lost")), WorkerLost("lost"), Withdrawn("ended", "x")], EPOCH)
    before = store.snapshot()
    good = a_place("r2", **{"GPU-1": 1000})
    made = store.commit(Plan((bad, good)), LATER, LATER)
    assert made.refused == (bad.request_id,)
    assert [lease.request_id for lease in made.leases] == ["r2"]
    after = store.snapshot()
    assert after.usage == {("worker-a", "GPU-1"): Usage(1000, 0, LATER)}
    assert [p.id for p in after.pending] == ["r1"]
    assert after.workers == before.workers


def test_a_request_is_placed_once_even_if_a_plan_places_it_twice(store):
    prepare(store, "r1")
    made = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}), a_place("r1", **{"GPU-1": 1000}))), EPOCH, LATER)
    assert (len(made.leases), made.refused) == (1, ("r1",))
    assert store.snapshot().used("worker-a", "GPU-1") == Usage()


def test_shares_of_a_device_add_up_to_the_whole(store):
    prepare(store, "r1", "r2", "r3")
    grant(store, a_place("r1", **{"GPU-0": 333}), a_place("r2", **{"GPU-0": 667}))
    assert store.commit(Plan((a_place("r3", **{"GPU-0": 1}),)), EPOCH, LATER).refused == ("r3",)


def test_memory_of_an_accelerator_is_noted_and_limits_nothing(store):
    prepare(store, "r1", "r2")
    halves = [place(r, Claim(device_id="GPU-0", milli=500, memory_bytes=30 * GIB)) for r in ("r1", "r2")]
    grant(store, *halves)
    assert store.snapshot().used("worker-a", "GPU-0") == Usage(1000, 60 * GIB, EPOCH)


def test_cores_of_live_leases_never_meet_and_freed_ones_are_given_again(store):
    prepare(store, "r1", "r2", "r3", "r4")
    first, second = grant(store, a_place("r1", cpu=3000), a_place("r2", cpu=3000))
    assert (first.claims[0].cores, second.claims[0].cores) == ((0, 1, 2), (3, 4, 5))
    release(store, first)
    third, fourth = grant(store, a_place("r3", cpu=2000), a_place("r4", cpu=3000))
    assert (third.claims[0].cores, fourth.claims[0].cores) == ((6, 7), (0, 1, 2))


# -- renewal and end ---------------------------------------------------------------------------------------------------


def test_a_renewed_lease_is_active_and_lasts_longer(store):
    prepare(store, "r1", "r2")
    first, second = grant(store, a_place("r1", **{"GPU-0": 1000}), a_place("r2", **{"GPU-1": 1000}))
    move_lease(store, second.id, second.token, LeaseState.EXPIRED, EPOCH)
    before = store.snapshot()
    assert store.renew([(first.id, first.token), (second.id, second.token)], MUCH_LATER) == frozenset()
    renewed = {"state": LeaseState.ACTIVE, "expires_at": MUCH_LATER}
    after = store.snapshot()
    assert after.leases == (first.model_copy(update=renewed), second.model_copy(update=renewed))
    assert after.sequence > before.sequence
    for part in ("workers", "usage", "pending", "dag_tokens"):
        assert getattr(after, part) is getattr(before, part)
    assert store.renew([(first.id, first.token)], MUCH_LATER) == frozenset()
    assert store.snapshot() is after


def test_what_is_not_held_with_that_token_is_told_and_not_renewed(store):
    prepare(store, "r1", "r2", "r3")
    mine, other, ended = grant(store, *(a_place(r, cpu=1000) for r in ("r1", "r2", "r3")))
    release(store, ended)
    holds = [(mine.id, mine.token), (other.id, other.token + 1), (ended.id, ended.token), ("unknown", 1)]
    assert store.renew(holds, MUCH_LATER) == {other.id, ended.id, "unknown"}
    assert [(lease.id, lease.expires_at) for lease in store.snapshot().leases] == [
        (mine.id, MUCH_LATER),
        (other.id, LATER),
    ]
    assert store.renew([], MUCH_LATER) == frozenset()


def reach(store, lease: Lease, state: LeaseState) -> None:
    if state == LeaseState.ACTIVE:
        store.renew([(lease.id, lease.token)], LATER)
    elif state != LeaseState.GRANTED:
        move_lease(store, lease.id, lease.token, state, EPOCH)


def test_who_holds_a_lease_is_known_until_it_ends(store):
    one = a_pending("r1", served={"nvidia/k80": 12.5}, gang="g", gang_size=1)
    store.record([WorkerSeen(a_worker()), Submitted(one)], EPOCH)
    assert (store.snapshot().pending, store.snapshot().holders) == ((one,), {})
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    assert (store.snapshot().pending, store.snapshot().holders) == ((), {"r1": one})
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, LATER)
    assert (store.snapshot().pending, store.snapshot().holders) == ((), {})


def test_a_preempted_lease_that_is_renewed_lasts_longer_and_stays_preempted(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    told = move_lease(store, lease.id, lease.token, LeaseState.PREEMPTED, EPOCH)
    assert store.renew([(lease.id, lease.token)], MUCH_LATER) == frozenset()
    assert store.snapshot().leases == (told.model_copy(update={"expires_at": MUCH_LATER}),)
    assert store.snapshot().used("worker-a", "GPU-0").milli == 1000


def test_a_lease_remembers_when_its_task_saved(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([Saved(lease.id, lease.token + 1), Saved("other", 1)], EPOCH)
    assert store.snapshot().leases == (lease,)
    store.record([Saved(lease.id, lease.token)], LATER)
    assert store.snapshot().leases == (lease.model_copy(update={"saved_at": LATER}),)


def test_why_what_was_placed_does_not_run_yet_is_told_until_it_does(store):
    prepare(store, "r1", "r2")
    grant(store, a_place("r1", **{"GPU-0": 1000}))
    reason = Reason(ReasonCode.BUSY, "a container", "no node has room")
    store.record([Delayed("r1", reason), Delayed("r2", reason), Delayed("other", reason)], EPOCH)
    (decision,) = store.story("dag", "run", "r1").decisions
    assert decision["reason"] == {"code": "busy", "asked": "a container", "found": "no node has room"}
    assert all(one["reason"] != decision["reason"] for one in store.story("dag", "run", "r2").decisions)
    store.record([Delayed("r1", None)], EPOCH)
    assert store.story("dag", "run", "r1").decisions[0]["reason"] is None


@pytest.mark.parametrize(("was", "to"), list(product(LeaseState, LeaseState)))
def test_a_lease_changes_as_the_table_of_transitions_says(store, was, to):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    reach(store, lease, was)
    if (was, to) in TRANSITIONS:
        assert move_lease(store, lease.id, lease.token, to, LATER) == lease.model_copy(update={"state": to})
        assert store.story("dag", "run", "r1").leases[0].state == to
    else:
        before = store.snapshot()
        with pytest.raises(InvalidTransition, match=f"lease r1.1 to become {to}; found it is {was}"):
            move_lease(store, lease.id, lease.token, to, LATER)
        assert store.snapshot() is before


@pytest.mark.parametrize("end", [LeaseState.RELEASED, LeaseState.EVICTED])
@pytest.mark.parametrize("cause", ["", "host down"])
def test_the_end_of_a_lease_frees_its_devices_and_ends_its_request(store, end, cause):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000, "cpu": 4000}))
    move_lease(store, lease.id, lease.token, end, LATER, cause)
    found = store.snapshot()
    assert found.leases == ()
    assert found.usage == {("worker-a", "GPU-0"): Usage(0, 0, EPOCH), ("worker-a", "cpu"): Usage(0, 0, EPOCH)}
    told = store.story("dag", "run", "r1")
    assert (told.state, told.ended_at) == ("ended", LATER)
    assert told.cause == (cause or TRANSITIONS[LeaseState.GRANTED, end])
    grant(store, a_place("r2", **{"GPU-0": 1000, "cpu": 8000}))


def test_an_expired_lease_still_holds_its_devices(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    move_lease(store, lease.id, lease.token, LeaseState.EXPIRED, LATER)
    assert store.snapshot().used("worker-a", "GPU-0").milli == 1000
    assert store.commit(Plan((a_place("r2", **{"GPU-0": 1000}),)), LATER, LATER).refused == ("r2",)


def test_moving_an_unknown_lease_or_with_another_token_raises_and_changes_nothing(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    before = store.snapshot()
    with pytest.raises(LeaseNotFound, match="lease nothing; found no such lease"):
        move_lease(store, "nothing", 1, LeaseState.RELEASED, LATER)
    with pytest.raises(LeaseLost, match=r"lease r1\.1 with token 2; found its token is 1"):
        move_lease(store, lease.id, 2, LeaseState.RELEASED, LATER)
    assert store.snapshot() is before


# -- history -----------------------------------------------------------------------------------------------------------


def decided(at, outcome, position=None, reason=None, nearest=None, account=ACCOUNT_JSON):
    return {
        "decided_at": at.isoformat(),
        "outcome": outcome,
        "position": position,
        "reason": reason,
        "nearest": nearest,
        "account": account,
    }


BUSY_JSON = {"code": "busy", "asked": "1 × gpu", "found": "0 free"}


def test_a_wait_is_kept_once_until_it_changes(store):
    prepare(store, "r1", "r2")
    before = store.snapshot()
    for _ in range(3):
        assert store.commit(Plan((wait("r1", 1), wait("r2", 2))), EPOCH, LATER) == Commit()
    store.commit(Plan((wait("r1", 1), wait("r2", 1))), LATER, LATER)
    assert store.snapshot() is before
    assert store.story("dag", "run", "r1").decisions == (decided(EPOCH, "wait", 1, BUSY_JSON),)
    assert store.story("dag", "run", "r2").decisions == (
        decided(LATER, "wait", 1, BUSY_JSON),
        decided(EPOCH, "wait", 2, BUSY_JSON),
    )


def test_a_wait_with_another_reason_or_account_is_kept(store):
    prepare(store, "r1")
    lost = Reason(ReasonCode.LOST, "seen", "lost")
    plans = [wait(), wait(reason=lost), wait(reason=lost, account=Account("fifo", "other")), wait()]
    for decision in plans:
        store.commit(Plan((decision,)), EPOCH, LATER)
    assert len(store.story("dag", "run", "r1").decisions) == 4


def test_a_request_that_waits_again_has_its_wait_kept_again(store):
    prepare(store, "r1")
    store.commit(Plan((wait(),)), EPOCH, LATER)
    store.record([Withdrawn("r1", "cleared"), Submitted(a_pending("r1"))], LATER)
    store.commit(Plan((wait(),)), LATER, LATER)
    assert store.story("dag", "run", "r1").decisions == (
        decided(LATER, "wait", 1, BUSY_JSON),
        decided(EPOCH, "wait", 1, BUSY_JSON),
    )


def test_each_outcome_is_told_with_its_account(store):
    prepare(store, "r1", "r2")
    reason = Reason(ReasonCode.COUNT, "4 × gpu", "2 on the largest worker")
    store.commit(Plan((wait("r1"), wait("r2", 2))), EPOCH, LATER)
    plan = Plan((a_place("r1", **{"GPU-0": 1000}), Refuse("r2", reason, "worker-a has 2", ACCOUNT)))
    store.commit(plan, LATER, LATER)
    by_test = {"policy": "test", "summary": "as the test says", "alternatives": []}
    waited = [decided(EPOCH, "wait", position, BUSY_JSON) for position in (1, 2)]
    assert store.story("dag", "run", "r1").decisions == (decided(LATER, "place", account=by_test), waited[0])
    told = store.story("dag", "run", "r2")
    reason_json = {"code": "count", "asked": "4 × gpu", "found": "2 on the largest worker"}
    assert told.decisions == (decided(LATER, "refuse", reason=reason_json, nearest="worker-a has 2"), waited[1])
    assert (told.state, told.ended_at, told.cause) == ("ended", LATER, str(reason))
    assert store.snapshot().pending == ()


def test_decisions_about_requests_that_do_not_wait_are_passed_over(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    before = store.snapshot()
    plan = Plan((wait("r1"), wait("unknown"), Refuse("r1", BUSY, "", ACCOUNT), Refuse("unknown", BUSY, "", ACCOUNT)))
    assert store.commit(plan, LATER, LATER) == Commit()
    assert store.snapshot() is before
    assert store.snapshot().leases == (lease,)
    assert len(store.story("dag", "run", "r1").decisions) == 1


def test_the_story_is_of_the_newest_request_of_the_task_instance(store):
    tries = [a_pending(f"t{n}", at_s=n, task_id="train", map_index=3, try_number=n) for n in (1, 2)]
    other = a_pending("t3", at_s=9, task_id="train", map_index=4)
    store.record([Submitted(pending) for pending in (tries[1], tries[0], other)], EPOCH)
    told = store.story("dag", "run", "train", 3)
    assert (told.pending, told.state, told.leases, told.decisions) == (tries[1], "waiting", (), ())
    assert store.story("dag", "run", "train") is None
    assert store.story("dag", "other run", "train", 3) is None


def test_pruning_forgets_what_ended_before_and_keeps_what_lives(store):
    prepare(store, "old", "new", "placed", "waiting")
    old, new, placed = grant(store, *(a_place(r, cpu=1000) for r in ("old", "new", "placed")))
    for position in (3, 2):
        store.commit(Plan((wait("waiting", position),)), EPOCH, LATER)
    release(store, old, now=EPOCH)
    release(store, new, now=LATER)
    before = store.snapshot()
    assert store.prune(LATER) == 1
    assert store.snapshot() == before
    assert store.story("dag", "run", "old") is None
    with pytest.raises(LeaseNotFound):
        move_lease(store, old.id, old.token, LeaseState.EXPIRED, LATER)
    assert store.story("dag", "run", "new").leases[0].id == new.id
    assert store.story("dag", "run", "placed").leases == (placed,)
    assert [d["position"] for d in store.story("dag", "run", "waiting").decisions] == [2]
    assert store.prune(LATER) == 0
    assert store.prune(MUCH_LATER) == 1
