"""The trial of a lease: it needs the whole path through the tables, and leaves nothing."""

import pytest
from sqlalchemy import create_engine, func, select

from hetero_airflow.errors import StoreUnavailable
from hetero_airflow.store import tables
from hetero_airflow.store.sql.lease_trial import try_lease
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker


def test_a_trial_leaves_nothing_and_no_snapshot_shows_it(engine):
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker())], EPOCH)
    before = store.snapshot()
    try_lease(engine, EPOCH)
    try_lease(engine, EPOCH)
    assert SqlStore(engine).snapshot() == before
    with engine.connect() as connection:
        for table in (tables.lease, tables.request, tables.lease_device, tables.tally):
            assert connection.scalar(select(func.count()).select_from(table)) == 0


def test_a_trial_without_tables_says_what_to_do():
    with pytest.raises(StoreUnavailable, match="Run `airflow db migrate`"):
        try_lease(create_engine("sqlite://"), EPOCH)
