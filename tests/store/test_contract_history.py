"""Decisions and histories: every store keeps them until they are pruned, and a database exports its decisions."""

import tracemalloc
from datetime import timedelta
from itertools import chain

import pytest

from hetero_airflow.errors import LeaseNotFound
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.run import MAX_TRANSITIONS, Transition
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.decision_export import PAGE, decision_pages
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import CommitResult, RequestSubmitted, RequestWithdrawn, TransitionsNoted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker, move_lease
from tests.store.contract import ACCOUNT, BUSY, LATER, MUCH_LATER, grant, prepare, release

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
BUSY_JSON = {"code": "busy", "asked": "1 × gpu", "found": "0 free"}


def wait(request_id="r1", position=1, reason=BUSY, account=ACCOUNT) -> Wait:
    return Wait(request_id, position, reason, account)


def decided(at, outcome, position=None, reason=None, nearest=None, account=ACCOUNT_JSON):
    return {
        "decided_at": at.isoformat(),
        "outcome": outcome,
        "position": position,
        "reason": reason,
        "nearest": nearest,
        "account": account,
    }


def test_the_newest_transitions_of_a_request_are_kept_in_the_order_of_their_times(store):
    """Two schedulers had the request. What a snapshot shows does not change."""
    prepare(store, "r1")
    before = store.snapshot()
    steps = [Transition(EPOCH + timedelta(seconds=n), "Watched", "running") for n in range(MAX_TRANSITIONS + 10)]
    ended = steps[-1]._replace(event="EngineEnded", phase="ending", text="no\x00 char\ud800")
    store.record([TransitionsNoted("r1", (*steps[1::2], ended)), TransitionsNoted("unknown", (ended,))], EPOCH)
    store.record([TransitionsNoted("r1", tuple(steps[:-1:2]))], LATER)
    kept = store.request_history("dag", "run", "r1").transitions
    assert kept[:-1] == tuple(steps[-MAX_TRANSITIONS + 1 :])
    assert kept[-1] == ended._replace(text=clean_cause(ended.text))
    assert store.snapshot() is before


def test_a_wait_is_kept_once_until_it_changes(store):
    prepare(store, "r1", "r2")
    before = store.snapshot()
    for _ in range(3):
        assert store.commit(Plan((wait("r1", 1), wait("r2", 2))), EPOCH, LATER) == CommitResult()
    store.commit(Plan((wait("r1", 1), wait("r2", 1))), LATER, LATER)
    assert store.snapshot() is before
    assert store.request_history("dag", "run", "r1").decisions == (decided(EPOCH, "wait", 1, BUSY_JSON),)
    assert store.request_history("dag", "run", "r2").decisions == (
        decided(LATER, "wait", 1, BUSY_JSON),
        decided(EPOCH, "wait", 2, BUSY_JSON),
    )


def test_a_wait_with_another_reason_or_account_is_kept(store):
    prepare(store, "r1")
    lost = Reason(ReasonCode.LOST, "seen", "lost")
    plans = [wait(), wait(reason=lost), wait(reason=lost, account=Account("fifo", "other")), wait()]
    for decision in plans:
        store.commit(Plan((decision,)), EPOCH, LATER)
    assert len(store.request_history("dag", "run", "r1").decisions) == 4


def test_a_request_that_waits_again_has_its_wait_kept_again(store):
    prepare(store, "r1")
    store.commit(Plan((wait(),)), EPOCH, LATER)
    store.record([RequestWithdrawn("r1", "cleared"), RequestSubmitted(a_pending("r1"))], LATER)
    store.commit(Plan((wait(),)), LATER, LATER)
    assert store.request_history("dag", "run", "r1").decisions == (
        decided(LATER, "wait", 1, BUSY_JSON),
        decided(EPOCH, "wait", 1, BUSY_JSON),
    )


def test_each_outcome_is_reported_with_its_account(store):
    prepare(store, "r1", "r2")
    reason = Reason(ReasonCode.COUNT, "4 × gpu", "2 on the largest worker")
    store.commit(Plan((wait("r1"), wait("r2", 2))), EPOCH, LATER)
    plan = Plan((a_place("r1", **{"GPU-0": 1000}), Refuse("r2", reason, "worker-a has 2", ACCOUNT)))
    store.commit(plan, LATER, LATER)
    by_test = {"policy": "test", "summary": "as the test says", "alternatives": []}
    waited = [decided(EPOCH, "wait", position, BUSY_JSON) for position in (1, 2)]
    assert store.request_history("dag", "run", "r1").decisions == (decided(LATER, "place", account=by_test), waited[0])
    history = store.request_history("dag", "run", "r2")
    reason_json = {"code": "count", "asked": "4 × gpu", "found": "2 on the largest worker"}
    assert history.decisions == (decided(LATER, "refuse", reason=reason_json, nearest="worker-a has 2"), waited[1])
    assert (history.state, history.ended_at, history.cause) == ("ended", LATER, str(reason))
    assert store.snapshot().pending == ()


def test_decisions_about_requests_that_do_not_wait_are_passed_over(store):
    prepare(store, "r1")
    (lease,) = grant(store, a_place("r1", **{"GPU-0": 1000}))
    before = store.snapshot()
    plan = Plan((wait("r1"), wait("unknown"), Refuse("r1", BUSY, "", ACCOUNT), Refuse("unknown", BUSY, "", ACCOUNT)))
    assert store.commit(plan, LATER, LATER) == CommitResult()
    assert store.snapshot() is before
    assert store.snapshot().leases == (lease,)
    assert len(store.request_history("dag", "run", "r1").decisions) == 1


def test_the_history_is_of_the_newest_request_of_the_task_instance(store):
    tries = [a_pending(f"t{n}", at_s=n, task_id="train", map_index=3, try_number=n) for n in (1, 2)]
    other_task = a_pending("t3", at_s=9, task_id="train", map_index=4)
    store.record([RequestSubmitted(pending) for pending in (tries[1], tries[0], other_task)], EPOCH)
    history = store.request_history("dag", "run", "train", 3)
    assert (history.pending, history.state, history.leases, history.decisions) == (tries[1], "waiting", (), ())
    assert store.request_history("dag", "run", "train") is None
    assert store.request_history("dag", "other run", "train", 3) is None


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
    assert store.request_history("dag", "run", "old") is None
    with pytest.raises(LeaseNotFound):
        move_lease(store, old.id, old.token, LeaseState.EXPIRED, LATER)
    assert store.request_history("dag", "run", "new").leases[0].id == new.id
    assert store.request_history("dag", "run", "placed").leases == (placed,)
    assert [d["position"] for d in store.request_history("dag", "run", "waiting").decisions] == [2]
    assert store.prune(LATER) == 0
    assert store.prune(MUCH_LATER) == 1


def test_a_store_in_memory_forgets_what_has_ended():
    store = MemoryStore()
    requests = [RequestSubmitted(a_pending(request)) for request in ("r1", "r2", "r3")]
    store.record([WorkerSeen(a_worker()), *requests, RequestWithdrawn("r3", "cleared")], EPOCH)
    (lease,) = store.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, EPOCH).leases
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    with pytest.raises(LeaseNotFound):
        move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    store.commit(Plan((Refuse("r2", BUSY, "", ACCOUNT),)), EPOCH, EPOCH)
    snapshot = store.snapshot()
    assert (snapshot.pending, snapshot.leases, dict(snapshot.holders)) == ((), (), {})
    store.record([RequestSubmitted(a_pending("r2"))], EPOCH)
    assert store.snapshot().pending == (a_pending("r2"),)


FIELDS = [
    *("decided_at", "outcome", "request_id", "dag_id", "run_id", "task_id", "map_index", "try_number"),
    *("position", "reason", "nearest", "account"),
]
"""Other programs depend on these names."""


def exported(engine, since=EPOCH):
    return list(chain.from_iterable(decision_pages(engine, since)))


def fill(store: SqlStore, count: int) -> None:
    """Store so many decisions, each on a request of its own."""
    ids = [f"request-{number}" for number in range(count)]
    store.record([RequestSubmitted(a_pending(key)) for key in ids], EPOCH)
    store.commit(Plan(tuple(Wait(key, at, BUSY, ACCOUNT) for at, key in enumerate(ids, 1))), EPOCH, LATER)


def test_each_decision_has_all_names_and_the_oldest_is_first(engine):
    store = prepare(SqlStore(engine), "waits", "fits", "never")
    count = Reason(ReasonCode.COUNT, "4 × gpu", "2")
    store.commit(Plan((Wait("waits", 2, BUSY, ACCOUNT),)), EPOCH, LATER)
    store.commit(Plan((a_place("fits", **{"GPU-0": 1000}), Refuse("never", count, "2 × gpu", ACCOUNT))), LATER, LATER)
    lines = exported(engine)
    assert [list(line) for line in lines] == [FIELDS] * 3
    assert [(line["decided_at"], line["outcome"], line["request_id"]) for line in lines] == [
        (EPOCH.isoformat(), "wait", "waits"),
        (LATER.isoformat(), "place", "fits"),
        (LATER.isoformat(), "refuse", "never"),
    ]
    wait, place, refuse = lines
    assert (wait["position"], wait["reason"]) == (2, {"code": "busy", "asked": "1 × gpu", "found": "0 free"})
    assert (place["position"], place["reason"], place["nearest"]) == (None, None, None)
    assert (refuse["reason"]["code"], refuse["nearest"]) == ("count", "2 × gpu")
    task = [wait[name] for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")]
    assert task == ["dag", "run", "waits", -1, 1]
    assert wait["account"]["alternatives"][0]["candidates"][0]["worker_id"] == "worker-a"


def test_older_decisions_are_left_out(engine):
    store = prepare(SqlStore(engine), "r1")
    for position, at in enumerate((EPOCH, LATER, MUCH_LATER), 1):
        store.commit(Plan((Wait("r1", position, BUSY, ACCOUNT),)), at, at)
    assert [line["position"] for line in exported(engine, LATER)] == [2, 3]
    assert exported(engine, MUCH_LATER + timedelta(seconds=1)) == []


def test_a_reader_holds_nothing_and_an_export_ends_while_decisions_are_made(engine):
    store = SqlStore(engine)
    fill(store, PAGE + 1)
    pages = decision_pages(engine, EPOCH)
    assert len(next(pages)) == PAGE
    assert engine.pool.checkedout() == 0
    store.commit(Plan((Wait("request-0", PAGE, BUSY, ACCOUNT),)), LATER, LATER)
    assert [line["request_id"] for line in chain.from_iterable(pages)] == [f"request-{PAGE}"]


def test_an_export_of_a_long_history_needs_no_more_memory(engine):
    def peak_bytes() -> int:
        tracemalloc.start()
        assert all(len(page) <= PAGE for page in decision_pages(engine, EPOCH))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    fill(SqlStore(engine), 3 * PAGE)
    peak_bytes()  # the first query of an engine fills caches
    short = peak_bytes()
    fill(SqlStore(engine), 30 * PAGE)
    assert peak_bytes() < 1.5 * short
