"""One lease and its release, to see whether the database can do them."""

from contextlib import suppress
from datetime import datetime, timedelta
from uuid import uuid4

from sqlalchemy import Engine

from hetero_airflow.errors import StoreError
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim, LeaseState
from hetero_airflow.model.plan import Account, Place, Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.sql.events import record_events
from hetero_airflow.store.sql.leases import move_leases
from hetero_airflow.store.sql.plan_commit import PlanCommit, WaitDigests
from hetero_airflow.store.sql.transaction import write_transaction
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.units import MILLI_PER_DEVICE


class _Undone(Exception):
    """Rolls the transaction back."""


def try_lease(engine: Engine, now: datetime) -> None:
    """Lease a device of a worker that does not exist, and release it. Nothing stays, and no other process sees it.

    :raises StoreError: the database refuses a part of it, or is down
    """
    name = f"trial-{uuid4()}"
    device = Device(id=name, vendor="generic", kind="gpu", model="trial", index=0, memory_bytes=1)
    request = PendingRequest(name, DeviceRequest.parse("gpu"), now, dag_id=name, run_id=name, task_id=name)
    claim = Claim(device_id=name, share_milli=MILLI_PER_DEVICE)
    plan = Plan((Place(name, name, 0, (claim,), Account("trial", "a trial of the database")),))
    with suppress(_Undone), write_transaction(engine) as transaction:
        worker = Worker(id=name, host=name, devices=(device,))
        record_events(transaction, [WorkerSeen(worker), RequestSubmitted(request)], now)
        commit = PlanCommit(transaction, now, now + timedelta(minutes=1), WaitDigests().of(plan)).commit(plan)
        if not commit.leases:
            raise StoreError("a lease", found="no grant of a free device", remedy="Run `airflow db migrate`")
        (lease,) = commit.leases
        (outcome,) = move_leases(transaction, [LeaseMove(lease.id, lease.token, LeaseState.RELEASED, "trial")], now)
        if isinstance(outcome, StoreError):
            raise outcome
        raise _Undone
