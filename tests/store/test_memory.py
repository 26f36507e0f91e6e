from __future__ import annotations

from datetime import timedelta

import pytest

from hetero_airflow.errors import LeaseNotFound
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker, move_lease


def test_without_history_only_what_lives_is_kept():
    store = MemoryStore(keeps_history=False)
    requests = [RequestSubmitted(a_pending(request)) for request in ("r1", "r2", "r3")]
    store.record([WorkerSeen(a_worker()), *requests, RequestWithdrawn("r3", "cleared")], EPOCH)
    (lease,) = store.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, EPOCH).leases
    assert store.request_history("dag", "run", "r1").leases == (lease,)
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    assert (store.request_history("dag", "run", "r1"), store.request_history("dag", "run", "r3")) == (None, None)
    with pytest.raises(LeaseNotFound):
        move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    for position in (3, 2, 1):
        wait = Wait("r2", position, Reason(ReasonCode.BUSY, "1", "0"), Account("fifo", "busy"))
        store.commit(Plan((wait,)), EPOCH + timedelta(seconds=1), EPOCH)
    assert [decision["position"] for decision in store.request_history("dag", "run", "r2").decisions] == [1]
    assert store.prune(EPOCH + timedelta(days=1)) == 0
