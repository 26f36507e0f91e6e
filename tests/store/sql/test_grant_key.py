from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from hetero_airflow.errors import StoreError
from hetero_airflow.store import tables
from hetero_airflow.store.sql.grant_key import grant_signer
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker


def key_of(engine) -> str:
    return grant_signer(engine).sign(lease="r.1", token=1, task="t", start_by=0).key


def test_all_schedulers_sign_with_one_key_that_stays(engine):
    with ThreadPoolExecutor(4) as schedulers:
        keys = set(schedulers.map(key_of, [engine] * 8))
    assert len(keys) == 1
    SqlStore(engine).record([WorkerSeen(a_worker())], EPOCH)
    assert {key_of(engine)} == keys


def test_what_is_no_key_is_an_error_that_says_what_to_do(engine):
    with engine.begin() as connection:
        connection.execute(update(tables.state).values(grant_key="rubbish"))
    with pytest.raises(StoreError, match=r"no Ed25519 key. Set it to NULL and restart all schedulers"):
        grant_signer(engine)
    with engine.connect() as connection:
        assert connection.execute(select(tables.state.c.grant_key)).scalar() == "rubbish"
