"""Pages of the queue as the last cycle left it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hetero_airflow.model.plan import PAUSED, Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.store.queue_changes import Pause
from hetero_airflow.store.sql.queue import (
    LiveLease,
    WaitingRequest,
    count_waiting_reasons,
    read_live_leases,
    read_waiting_requests,
)
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker

LATER = EPOCH + timedelta(minutes=1)
ACCOUNT = Account("fifo", "no device is free")


def wait(request_id: str, position: int, found: str = "0 free") -> Wait:
    return Wait(request_id, position, Reason(ReasonCode.BUSY, "1 × gpu", found), ACCOUNT)


@pytest.fixture
def store(engine) -> SqlStore:
    """One lease, two requests with decisions, and one new request."""
    made = SqlStore(engine)
    pending = [a_pending(key, at_s=at, dag_id=f"dag-{key}") for at, key in enumerate(("first", "second", "third"))]
    made.record([WorkerSeen(a_worker()), *map(RequestSubmitted, pending)], EPOCH)
    made.commit(Plan((wait("first", 1), wait("second", 2), wait("third", 3))), EPOCH, LATER)
    made.commit(Plan((a_place("first", **{"GPU-1": 1000, "cpu": 2000}),)), EPOCH, LATER)
    made.commit(Plan((wait("third", 1, "1 free"), wait("second", 2))), LATER, LATER)
    made.record([RequestSubmitted(a_pending("new", dag_id="dag-new"))], LATER)
    return made


def waits(engine, *dag_ids: str, offset: int = 0, limit: int = 10) -> list[WaitingRequest]:
    with read_transaction(engine) as connection:
        return read_waiting_requests(connection, dag_ids, offset, limit)


ALL = ("dag-first", "dag-second", "dag-third", "dag-new")


def test_what_waits_comes_in_order_with_its_newest_reason(store, engine):
    rows = waits(engine, *ALL)
    assert [(row.id, row.position) for row in rows] == [("third", 1), ("second", 2), ("new", None)]
    assert "1 free" in rows[0].reason
    assert rows[2].reason == ""
    assert (rows[0].dag_id, rows[0].submitted_at) == ("dag-third", EPOCH + timedelta(seconds=2))


def test_only_the_dags_that_are_asked_for_are_reported_a_page_at_a_time(store, engine):
    assert [row.id for row in waits(engine, "dag-second", "dag-other")] == ["second"]
    assert waits(engine) == []
    assert [row.id for row in waits(engine, *ALL, offset=1, limit=1)] == ["second"]


def test_waiting_requests_are_counted_by_the_kind_of_their_newest_reason(store, engine):
    with read_transaction(engine) as connection:
        assert count_waiting_reasons(connection) == {"busy": 2, "undecided": 1}


def test_a_paused_request_is_shown_and_counted_as_paused(store, engine):
    store.change_queue([Pause("second"), Pause("new")])
    assert [(row.id, row.reason) for row in waits(engine, "dag-second", "dag-new")] == [
        ("second", str(PAUSED)),
        ("new", str(PAUSED)),
    ]
    with read_transaction(engine) as connection:
        assert count_waiting_reasons(connection) == {"busy": 1, "paused": 2}


def test_what_runs_is_reported_with_its_devices(store, engine):
    (lease,) = store.snapshot().leases
    with read_transaction(engine) as connection:
        live = read_live_leases(connection, ALL, 0, 10)
        assert read_live_leases(connection, ["dag-second"], 0, 10) == []
    assert live == [
        LiveLease(
            lease.id, "dag-first", "run", "first", -1, 1, "worker-a", ("GPU-1", "cpu"), "granted", EPOCH
        )
    ]  # fmt: skip
