"""In every store, requests wait in their order, are withdrawn, and wait again."""

from __future__ import annotations

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn
from hetero_airflow.testing import EPOCH, a_pending, a_place
from tests.store.contract import LATER, MUCH_LATER, grant, prepare, release


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
