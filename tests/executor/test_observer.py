"""What was found out about each waiting task, from what Airflow and the store know about it."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from hetero_airflow.executor.events import Dropped, Failed, FoundLeftOver, FoundRunning, Granted, RequestFound
from hetero_airflow.executor.leases.lease_use import LeaseUse
from hetero_airflow.executor.observer import compare
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.run import Phase, Run
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.testing import EPOCH, a_lease, a_pending

REQUEST = DeviceRequest.parse("gpu", wait_timeout="1m")
PENDING = a_pending("id")
LEASE = a_lease(request_id="id")
WAITING = Snapshot(1, pending=(PENDING,))
LEASED = Snapshot(1, leases=(LEASE,), holders={"id": PENDING})
HALF_A_GANG = Snapshot(1, leases=(LEASE,), holders={"id": a_pending("id", gang="g #1", gang_size=2)})
NEW = "new"


def found(snapshot, *, request=None, is_excluded=False, queued=("id",), kept=(), uses=None, after_s=0.0):
    """The event; `NEW` if the store does not know the task, None if there is nothing to do."""
    workload = SimpleNamespace(ti=SimpleNamespace(id="id", executor_config={}, map_index=-1))
    task = PendingTask(workload, REQUEST, EPOCH, request=request, is_excluded=is_excluded)
    run, now = Run("key", "id", Phase.WAITING, workload, task), EPOCH + timedelta(seconds=after_s)
    events, new = compare([run], snapshot, queued=queued, kept=kept, uses=uses or {}, now=now)
    assert len(events) + len(new) <= 1
    return NEW if new else next((event for _, event in events), None)


@pytest.mark.parametrize(
    ("snapshot", "state", "expected"),
    [
        (Snapshot(1), {}, NEW),
        (WAITING, {}, RequestFound(PENDING)),
        (WAITING, {"request": REQUEST}, None),
        (LEASED, {}, None),
        (LEASED, {"uses": {LEASE.id: LeaseUse.IN_USE}}, None),
        (LEASED, {"uses": {LEASE.id: LeaseUse.UNUSED}}, Granted(LEASE, is_found=True)),
        (LEASED, {"uses": {LEASE.id: LeaseUse.LEFT_OVER}}, FoundLeftOver(LEASE)),
        (LEASED, {"uses": {LEASE.id: LeaseUse.BEGUN}, "queued": ()}, FoundRunning(LEASE)),
        (HALF_A_GANG, {"uses": {LEASE.id: LeaseUse.UNUSED}}, None),
        (HALF_A_GANG, {"uses": {LEASE.id: LeaseUse.LEFT_OVER}}, FoundLeftOver(LEASE)),
        (LEASED, {"kept": ["id"]}, None),
        (Snapshot(1), {"is_excluded": True}, None),
        (WAITING, {"request": REQUEST, "after_s": 60.0}, None),
    ],
)
def test_each_task_gets_the_event_that_its_state_needs(snapshot, state, expected):
    assert found(snapshot, **state) == expected


def test_a_task_that_airflow_does_not_want_is_dropped():
    assert isinstance(found(WAITING, queued=()), Dropped)


def test_a_task_that_has_waited_too_long_fails_with_its_limit():
    event = found(WAITING, request=REQUEST, after_s=60.1)
    assert isinstance(event, Failed)
    assert event.text.startswith("No device in time: asked to wait at most 60 s for 1 × gpu")


def test_a_young_task_is_not_looked_up_in_airflow(bench):
    asked = []
    bench.tasks.queued = lambda ids: asked.append(set(ids)) or set(ids)
    bench.start("first", "gpu:2")
    id_ = bench.hold("a")
    bench.beat(0.9)
    assert id_ not in set().union(*asked)
    bench.beat(0.1)
    assert id_ in set().union(*asked)


def test_the_wait_timeout_of_a_paused_task_goes_on():
    paused = Snapshot(1, pending=(replace(PENDING, is_paused=True),))
    assert found(paused, request=REQUEST, after_s=59) is None
    event = found(paused, request=REQUEST, after_s=61)
    assert isinstance(event, Failed)
    assert "asked to wait at most 60 s" in event.text
