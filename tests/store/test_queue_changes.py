"""What a person changes about waiting requests, on SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero_airflow.model.plan import PAUSED, Plan
from hetero_airflow.model.request import Priority
from hetero_airflow.store.queue_changes import Pause, PriorityChange
from hetero_airflow.store.sql.queue import read_waiting_requests
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn
from hetero_airflow.testing import a_pending, a_place
from tests.store.contract import LATER, MUCH_LATER, grant, prepare, release


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
