"""``airflow hetero forget``."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.workers.enroll import enroll_worker
from hetero_airflow.cli.workers.forget import forget_worker
from hetero_airflow.errors import StoreError
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker

LATER = EPOCH + timedelta(minutes=2)


@pytest.fixture
def store(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    tables.metadata.create_all(engine)
    return SqlStore(engine)


def test_a_lost_worker_is_forgotten(store, render):
    store.record([WorkerSeen(a_worker()), WorkerLost("worker-a")], EPOCH)
    with pytest.raises(StoreError, match="seen, or held a lease, after"):
        list(forget_worker(store, "worker-a", EPOCH + timedelta(seconds=59)))
    assert render(forget_worker(store, "worker-a", LATER)).splitlines() == [
        "Worker worker-a is forgotten: its devices, holds, error records and key are deleted.",
        "An agent of this name has to enrol again, with a secret from `airflow hetero enroll`.",
    ]
    assert store.snapshot().workers == ()
    with pytest.raises(StoreError, match="found no such worker"):
        list(forget_worker(store, "worker-a", LATER))


def test_the_secret_of_a_worker_that_never_came_is_forgotten(store, render):
    render(enroll_worker(store._engine, "node-7", EPOCH))
    text = render(forget_worker(store, "node-7", LATER))
    assert text.startswith("Worker node-7 is forgotten: the holds, error records and key of this name are deleted.")


def test_an_online_worker_is_not_forgotten(store):
    store.record([WorkerSeen(a_worker())], EPOCH)
    with pytest.raises(StoreError) as caught:
        list(forget_worker(store, "worker-a", LATER))
    assert str(caught.value) == (
        "hetero_airflow can't forget worker 'worker-a'; found that it is online. "
        "Stop its agent, or the scheduler on it, and wait until the worker is lost."
    )
