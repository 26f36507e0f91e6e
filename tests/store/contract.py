"""Start states of the contract tests: one worker, waiting requests, granted placements."""

from datetime import timedelta

import pytest

from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Account, AlternativeAccount, CandidateAccount, Place, Plan, Reason, ReasonCode
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_worker, move_lease

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
IN_MEMORY_TOO = pytest.mark.parametrize("store", ["memory", "sqlite", POSTGRES], indirect=True)
"""For what every store does; the others have a history, agents and holds too."""

LATER = EPOCH + timedelta(seconds=60)
MUCH_LATER = EPOCH + timedelta(days=2)
GIB = 2**30
BUSY = Reason(ReasonCode.BUSY, "1 × gpu", "0 free")
ACCOUNT = Account(
    "fifo",
    "no device is free",
    (AlternativeAccount("1 × gpu", 1, ((1, BUSY),), (CandidateAccount("worker-a", ("GPU-0",), 0.5, {"fit": 0.5}),)),),
)


def place(request_id="r1", *claims: Claim, worker_id="worker-a") -> Place:
    return Place(request_id, worker_id, 0, claims, ACCOUNT)


def prepare(store, *requests: str, worker=None):
    """A store with one worker and waiting requests that were submitted a second apart."""
    pending = [RequestSubmitted(a_pending(key, at_s=at)) for at, key in enumerate(requests)]
    store.record([WorkerSeen(worker or a_worker()), *pending], EPOCH)
    return store


def grant(store, *places: Place) -> tuple[Lease, ...]:
    made = store.commit(Plan(places), EPOCH, LATER)
    assert made.raced == ()
    return made.leases


def release(store, lease: Lease, now=LATER, cause="") -> Lease:
    return move_lease(store, lease.id, lease.token, LeaseState.RELEASED, now, cause)
