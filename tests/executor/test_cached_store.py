from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, event

from hetero_airflow.executor.cached_store import CachedSnapshotStore
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker

LATER = EPOCH + timedelta(minutes=1)


@pytest.fixture
def database(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def store(database):
    store = CachedSnapshotStore(database)
    store.record([WorkerSeen(a_worker())], EPOCH)
    return store


def submit(store, name):
    store.record([RequestSubmitted(replace(a_pending(), id=name))], EPOCH)


def waiting(store):
    return [pending.id for pending in store.snapshot().pending]


def test_it_reads_the_tables_once_a_look(store, database):
    store.snapshot()
    statements = []
    event.listen(database, "before_cursor_execute", lambda *about: statements.append(about))
    store.snapshot()
    assert statements == []
    store.invalidate()
    store.snapshot()
    assert statements != []


def test_what_another_scheduler_writes_is_seen_at_the_next_look(store, database):
    store.snapshot()
    submit(SqlStore(database), "theirs")
    assert waiting(store) == []
    store.invalidate()
    assert waiting(store) == ["theirs"]


def test_each_write_of_its_own_is_seen_at_once(store):
    submit(store, "r")
    assert waiting(store) == ["r"]
    (lease,) = store.commit(Plan((a_place("r", "worker-a", **{"GPU-0": 1000}),)), EPOCH, LATER).leases
    assert store.snapshot().leases == (lease,)
    store.renew([(lease.id, lease.token)], LATER + timedelta(minutes=1))
    assert store.snapshot().leases[0].state is LeaseState.ACTIVE
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED)], EPOCH)
    assert store.snapshot().leases == ()
