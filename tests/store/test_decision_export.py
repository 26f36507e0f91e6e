"""The export of stored decisions, on SQLite and PostgreSQL."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta
from itertools import chain

from hetero_airflow.model.plan import Plan, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.store.decision_export import PAGE, decision_pages
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted
from hetero_airflow.testing import EPOCH, a_pending, a_place
from tests.store.contract import ACCOUNT, BUSY, LATER, MUCH_LATER, prepare

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
