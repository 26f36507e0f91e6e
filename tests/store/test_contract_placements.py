"""In every store, requests wait in their order, and a placement is leased whole or refused."""

import pytest

from hetero_airflow.model.lease import Claim, LeaseState
from hetero_airflow.model.plan import Plan, Wait
from hetero_airflow.model.snapshot import DeviceUsage
from hetero_airflow.store.store import CommitResult, RequestSubmitted, RequestWithdrawn, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_device, a_lease, a_pending, a_place, a_worker
from tests.store.contract import ACCOUNT, BUSY, GIB, IN_MEMORY_TOO, LATER, MUCH_LATER, grant, place, prepare, release


@IN_MEMORY_TOO
def test_requests_wait_in_the_order_of_submission(store):
    a, b, c = a_pending("a", at_s=2), a_pending("b", ["h100:2", "cpu:4"], at_s=1, weight=7), a_pending("c", at_s=1)
    store.record([RequestSubmitted(a), RequestSubmitted(c), RequestSubmitted(b)], LATER)
    assert store.snapshot().pending == (b, c, a)


def test_a_request_submitted_again_while_it_waits_or_is_placed_changes_nothing(store):
    prepare(store, "r1")
    before = store.snapshot()
    store.record([RequestSubmitted(a_pending("r1", at_s=99, weight=9))], LATER)
    assert store.snapshot().pending == before.pending
    grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([RequestSubmitted(a_pending("r1", at_s=99))], LATER)
    assert store.snapshot().pending == ()
    assert store.request_history("dag", "run", "r1").state == "placed"


def test_a_request_that_ended_waits_again_when_it_is_submitted_again(store):
    prepare(store, "r1")
    (first,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    release(store, first)
    again = a_pending("r1", at_s=99, weight=9)
    store.record([RequestSubmitted(again)], MUCH_LATER)
    assert store.snapshot().pending == (again,)
    (second,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    assert second.id != first.id
    history = store.request_history("dag", "run", "r1")
    assert (history.pending, history.state, history.ended_at, history.cause) == (again, "placed", None, "")
    assert history.leases == (first.model_copy(update={"state": LeaseState.RELEASED}), second)


def test_a_request_that_is_withdrawn_waits_no_longer(store):
    prepare(store, "r1", "r2")
    store.record([RequestWithdrawn("r1", "cleared by ada\0"), RequestWithdrawn("unknown", "x")], LATER)
    assert [pending.id for pending in store.snapshot().pending] == ["r2"]
    history = store.request_history("dag", "run", "r1")
    assert (history.state, history.ended_at, history.cause) == (
        "ended",
        LATER,
        "cleared by ada\N{REPLACEMENT CHARACTER}",
    )
    assert store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), LATER, LATER).raced == ("r1",)


def test_withdrawing_a_request_that_is_placed_or_ended_changes_nothing(store):
    prepare(store, "r1", "r2")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    store.record([RequestWithdrawn("r2", "first")], EPOCH)
    before = store.snapshot()
    store.record([RequestWithdrawn("r1", "late"), RequestWithdrawn("r2", "late")], LATER)
    assert store.snapshot() is before
    assert store.snapshot().leases == (lease,)
    assert store.request_history("dag", "run", "r1").state == "placed"
    assert store.request_history("dag", "run", "r2").cause == "first"


def test_events_of_one_batch_count_in_their_order(store):
    first, second = a_pending("r1"), a_pending("r1", at_s=5)
    batch = [
        RequestWithdrawn("r1", "too early"),
        RequestSubmitted(first),
        RequestWithdrawn("r1", "cleared"),
        RequestSubmitted(second),
    ]
    store.record(batch, EPOCH)
    assert store.snapshot().pending == (second,)
    store.record([RequestWithdrawn("r1", "cleared"), RequestSubmitted(first), RequestWithdrawn("r1", "at last")], LATER)
    assert store.snapshot().pending == ()
    assert store.request_history("dag", "run", "r1").cause == "at last"


def test_a_placement_becomes_a_lease(store):
    prepare(store, "r1", "r2")
    gpu = Claim(device_id="GPU-1", share_milli=1000, memory_bytes=40 * GIB)
    made = store.commit(
        Plan((place("r1", gpu, Claim(device_id="cpu", share_milli=2000, memory_bytes=8 * GIB)),)), EPOCH, LATER
    )
    claims = (gpu, Claim(device_id="cpu", share_milli=2000, memory_bytes=8 * GIB, cores=(0, 1)))
    granted = {"claims": claims, "state": LeaseState.GRANTED, "expires_at": LATER}
    lease = a_lease("r1", ago_s=0).model_copy(update=granted)
    assert made == CommitResult((lease,), ())
    snapshot = store.snapshot()
    assert snapshot.leases == (lease,)
    assert snapshot.pending == (a_pending("r2", at_s=1),)
    assert snapshot.usage == {
        ("worker-a", "GPU-1"): DeviceUsage(1000, 40 * GIB, EPOCH),
        ("worker-a", "cpu"): DeviceUsage(2000, 8 * GIB, EPOCH),
    }
    assert snapshot.dag_tokens == {"dag": 1}
    assert store.request_history("dag", "run", "r1").leases == (lease,)


def test_news_come_before_the_plan_that_places_them(store):
    prepare(store, "r1", "r2")
    events = [
        RequestSubmitted(a_pending("r3", at_s=3)),
        RequestWithdrawn("r1", "it is not wanted"),
        RequestSubmitted(a_pending("r4", at_s=4)),
    ]
    places = [a_place(name, **{f"GPU-{n}": 1000}) for n, name in enumerate(("r1", "r3"))]
    made = store.commit(Plan((*places, Wait("r4", 1, BUSY, ACCOUNT))), EPOCH, LATER, events)
    assert ([lease.request_id for lease in made.leases], made.raced) == (["r3"], ("r1",))
    assert [pending.id for pending in store.snapshot().pending] == ["r2", "r4"]
    assert [decision["outcome"] for decision in store.request_history("dag", "run", "r4").decisions] == ["wait"]
    assert store.request_history("dag", "run", "r1").cause == "it is not wanted"


@IN_MEMORY_TOO
def test_news_are_taken_note_of_though_nothing_is_decided(store):
    prepare(store, "r1")
    before = store.snapshot().sequence
    assert store.commit(Plan(), EPOCH, LATER, [RequestSubmitted(a_pending("r2", at_s=2))]) == CommitResult()
    assert [pending.id for pending in store.snapshot().pending] == ["r1", "r2"]
    assert store.snapshot().sequence > before


@IN_MEMORY_TOO
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
    pending = [RequestSubmitted(a_pending(f"r{n}", dag_id=f"dag{n % 2}")) for n in range(4)]
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
    assert made.raced == ("r2",)
    assert [pending.id for pending in store.snapshot().pending] == ["r2"]
    assert store.request_history("dag", "run", "r2").decisions == ()


@IN_MEMORY_TOO
def test_a_placement_is_granted_whole_or_not_at_all(store):
    prepare(store, "r1", "r2")
    grant(store, a_place("r1", **{"GPU-1": 1000}))
    before = store.snapshot()
    both = Plan((a_place("r2", **{"GPU-0": 1000, "cpu": 3000, "GPU-1": 1000}),))
    assert store.commit(both, LATER, LATER) == CommitResult((), ("r2",))
    after = store.snapshot()
    assert (after.usage, after.pending, after.leases) == (before.usage, before.pending, before.leases)
    (lease,) = grant(store, a_place("r2", **{"GPU-0": 1000, "cpu": 8000}))
    assert (lease.token, lease.claims[1].cores) == (2, tuple(range(8)))


BAD_PLACEMENTS = {
    "worker unknown": place("r1", Claim(device_id="GPU-0", share_milli=1000), worker_id="nowhere"),
    "device unknown": place("r1", Claim(device_id="GPU-9", share_milli=1000)),
    "device not leasable": place("r1", Claim(device_id="GPU-sick", share_milli=1000)),
    "worker lost": place("r1", Claim(device_id="GPU-0", share_milli=1000), worker_id="lost"),
    "request unknown": place("unknown", Claim(device_id="GPU-0", share_milli=1000)),
    "request ended": place("ended", Claim(device_id="GPU-0", share_milli=1000)),
    "more than a device": place("r1", Claim(device_id="GPU-0", share_milli=1001)),
    "nothing of a device": place("r1", Claim(device_id="GPU-0", share_milli=0, memory_bytes=1)),
    "nothing of a cpu": place("r1", Claim(device_id="cpu", share_milli=0)),
    "less than nothing": place("r1", Claim(device_id="GPU-0", share_milli=-1000)),
    "memory below zero": place("r1", Claim(device_id="cpu", share_milli=1000, memory_bytes=-1)),
    "half a core": place("r1", Claim(device_id="cpu", share_milli=1500)),
    "more cores than there are": place("r1", Claim(device_id="cpu", share_milli=9000)),
    "more host memory than there is": place("r1", Claim(device_id="cpu", share_milli=1000, memory_bytes=65 * GIB)),
    "no claim": place("r1"),
    "a device twice": place("r1", Claim(device_id="GPU-0", share_milli=500), Claim(device_id="GPU-0", share_milli=500)),
}


@pytest.mark.parametrize("bad", BAD_PLACEMENTS.values(), ids=BAD_PLACEMENTS)
@IN_MEMORY_TOO
def test_what_can_not_be_granted_is_refused_and_changes_nothing(store, bad):
    worker = a_worker(devices=(*a_worker().devices, a_device("GPU-sick", leasable=False, problem="XID 79")))
    prepare(store, "r1", "r2", "ended", worker=worker)
    store.record([WorkerSeen(a_worker("lost")), WorkerLost("lost"), RequestWithdrawn("ended", "x")], EPOCH)
    before = store.snapshot()
    good = a_place("r2", **{"GPU-1": 1000})
    made = store.commit(Plan((bad, good)), LATER, LATER)
    assert made.raced == (bad.request_id,)
    assert [lease.request_id for lease in made.leases] == ["r2"]
    after = store.snapshot()
    assert after.usage == {("worker-a", "GPU-1"): DeviceUsage(1000, 0, LATER)}
    assert [p.id for p in after.pending] == ["r1"]
    assert after.workers == before.workers


@IN_MEMORY_TOO
def test_a_request_is_placed_once_even_if_a_plan_places_it_twice(store):
    prepare(store, "r1")
    made = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}), a_place("r1", **{"GPU-1": 1000}))), EPOCH, LATER)
    assert (len(made.leases), made.raced) == (1, ("r1",))
    assert store.snapshot().used("worker-a", "GPU-1") == DeviceUsage()


@IN_MEMORY_TOO
def test_shares_of_a_device_add_up_to_the_whole(store):
    prepare(store, "r1", "r2", "r3")
    grant(store, a_place("r1", **{"GPU-0": 333}), a_place("r2", **{"GPU-0": 667}))
    assert store.commit(Plan((a_place("r3", **{"GPU-0": 1}),)), EPOCH, LATER).raced == ("r3",)


@IN_MEMORY_TOO
def test_memory_of_an_accelerator_is_noted_and_limits_nothing(store):
    prepare(store, "r1", "r2")
    halves = [place(r, Claim(device_id="GPU-0", share_milli=500, memory_bytes=30 * GIB)) for r in ("r1", "r2")]
    grant(store, *halves)
    assert store.snapshot().used("worker-a", "GPU-0") == DeviceUsage(1000, 60 * GIB, EPOCH)


@IN_MEMORY_TOO
def test_cores_of_live_leases_never_meet_and_freed_ones_are_given_again(store):
    prepare(store, "r1", "r2", "r3", "r4")
    first, second = grant(store, a_place("r1", cpu=3000), a_place("r2", cpu=3000))
    assert (first.claims[0].cores, second.claims[0].cores) == ((0, 1, 2), (3, 4, 5))
    release(store, first)
    third, fourth = grant(store, a_place("r3", cpu=2000), a_place("r4", cpu=3000))
    assert (third.claims[0].cores, fourth.claims[0].cores) == ((6, 7), (0, 1, 2))
