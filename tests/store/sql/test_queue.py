"""Pages of the queue as the last cycle left it, and what a person changes about waiting requests."""

from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.model.plan import PAUSED, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.request import Priority
from hetero_airflow.store.lease_history import LiveLease, read_live_leases
from hetero_airflow.store.sql.queue import (
    WaitingRequest,
    count_waiting_reasons,
    read_waiting_requests,
)
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import Pause, PriorityChange, RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.store.contract import ACCOUNT, LATER, MUCH_LATER, grant, prepare, release


def wait(request_id: str, position: int, found: str = "0 free") -> Wait:
    return Wait(request_id, position, Reason(ReasonCode.BUSY, "1 × gpu", found), ACCOUNT)


@pytest.fixture
def filled(engine) -> SqlStore:
    """One lease, two requests with decisions, and one new request."""
    made = SqlStore(engine)
    pending = [a_pending(key, at_s=at, dag_id=f"dag-{key}") for at, key in enumerate(("first", "second", "third"))]
    made.record([WorkerSeen(a_worker()), *map(RequestSubmitted, pending)], EPOCH)
    made.commit(Plan((wait("first", 1), wait("second", 2), wait("third", 3))), EPOCH, LATER)
    made.commit(Plan((a_place("first", **{"GPU-1": 1000, "cpu": 2000}),)), EPOCH, LATER)
    made.commit(Plan((wait("third", 1, "1 free"), wait("second", 2))), LATER, LATER)
    made.record([RequestSubmitted(a_pending("new", dag_id="dag-new"))], LATER)
    return made


def waiting(engine, *dag_ids: str, offset: int = 0, limit: int = 10) -> list[WaitingRequest]:
    with read_transaction(engine) as connection:
        return read_waiting_requests(connection, dag_ids, offset, limit)


ALL = ("dag-first", "dag-second", "dag-third", "dag-new")


def test_what_waits_comes_in_order_with_its_newest_reason(filled, engine):
    rows = waiting(engine, *ALL)
    assert [(row.id, row.position) for row in rows] == [("third", 1), ("second", 2), ("new", None)]
    assert "1 free" in rows[0].reason
    assert rows[2].reason == ""
    assert (rows[0].dag_id, rows[0].submitted_at) == ("dag-third", EPOCH + timedelta(seconds=2))


def test_only_the_dags_that_are_asked_for_are_reported_a_page_at_a_time(filled, engine):
    assert [row.id for row in waiting(engine, "dag-second", "dag-other")] == ["second"]
    assert waiting(engine) == []
    assert [row.id for row in waiting(engine, *ALL, offset=1, limit=1)] == ["second"]


def test_waiting_requests_are_counted_by_the_kind_of_their_newest_reason(filled, engine):
    with read_transaction(engine) as connection:
        assert count_waiting_reasons(connection) == {"busy": 2, "undecided": 1}


def test_a_paused_request_is_shown_and_counted_as_paused(filled, engine):
    filled.change_queue([Pause("second"), Pause("new")])
    assert [(row.id, row.reason) for row in waiting(engine, "dag-second", "dag-new")] == [
        ("second", str(PAUSED)),
        ("new", str(PAUSED)),
    ]
    with read_transaction(engine) as connection:
        assert count_waiting_reasons(connection) == {"busy": 1, "paused": 2}


def test_what_runs_is_reported_with_its_devices(filled, engine):
    (lease,) = filled.snapshot().leases
    with read_transaction(engine) as connection:
        live = read_live_leases(connection, ALL, 0, 10)
        assert read_live_leases(connection, ["dag-second"], 0, 10) == []
    assert live == [
        LiveLease(
            lease.id, "dag-first", "run", "first", -1, 1, "worker-a", ("GPU-1", "cpu"), "granted", EPOCH
        )
    ]  # fmt: skip


@pytest.fixture
def store(engine):
    return SqlStore(engine)


def test_a_paused_request_gets_no_devices_until_it_is_unpaused(store, engine):
    prepare(store, "r1")
    store.change_queue([Pause("r1")])
    assert store.snapshot().pending == (replace(a_pending("r1"), is_paused=True),)
    with engine.connect() as connection:
        assert [row.reason for row in read_waiting_requests(connection, ["dag"], 0, 9)] == [str(PAUSED)]
    late = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), LATER, MUCH_LATER)
    assert (late.leases, late.raced) == ((), ("r1",)), "the plan was made before the pause"
    store.change_queue([Pause("r1", is_paused=False)])
    assert store.snapshot().pending == (a_pending("r1"),)
    grant(store, a_place("r1", **{"GPU-0": 1000}))


def test_a_paused_request_is_withdrawn_and_comes_back_without_the_pause(store):
    prepare(store, "r1")
    store.change_queue([Pause("r1")])
    store.record([RequestWithdrawn("r1", "cleared")], LATER)
    assert store.snapshot().pending == ()
    assert store.request_history("dag", "run", "r1").cause == "cleared"
    store.record([RequestSubmitted(a_pending("r1", at_s=99))], MUCH_LATER)
    assert store.snapshot().pending == (a_pending("r1", at_s=99),)


def test_the_priority_of_a_waiting_request_changes_and_its_pause_stays(store):
    prepare(store, "r1", "r2")
    store.change_queue([Pause("r2"), PriorityChange("r2", Priority.URGENT)])
    assert store.snapshot().pending[1] == replace(a_pending("r2", at_s=1, priority="urgent"), is_paused=True)


def test_what_does_not_wait_is_not_changed(store):
    prepare(store, "placed", "ended")
    (lease,) = grant(store, a_place("placed", **{"GPU-0": 1000}))
    store.record([RequestWithdrawn("ended", "cleared")], LATER)
    before = store.snapshot()
    for id_ in ("placed", "ended", "unknown"):
        store.change_queue([Pause(id_), PriorityChange(id_, Priority.URGENT)])
    assert store.snapshot() == before
    release(store, lease)
    store.record([RequestSubmitted(a_pending("placed", at_s=5))], MUCH_LATER)
    assert not store.snapshot().pending[0].is_paused
