"""One action for each waiting task, from what Airflow and the store know about it."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from hetero_airflow.executor.leases.lease_use import LeaseUse
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.reconcile import (
    DropTask,
    EndLease,
    FailTask,
    FollowRun,
    HandOverTask,
    SubmitTask,
    TakeOverRequest,
    is_settled,
    reconcile,
)
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.testing import EPOCH, a_lease, a_pending

REQUEST = DeviceRequest.parse("gpu", wait_timeout="1m")
PENDING = a_pending("id")
LEASE = a_lease(request_id="id")
WAITING = Snapshot(1, pending=(PENDING,))
LEASED = Snapshot(1, leases=(LEASE,), holders={"id": PENDING})
HALF_A_GANG = Snapshot(1, leases=(LEASE,), holders={"id": a_pending("id", gang="g #1", gang_size=2)})


def actions(snapshot, *, request=None, is_excluded=False, queued=("id",), leased=(), uses=None, after_s=0.0):
    ti = SimpleNamespace(id="id", executor_config={}, map_index=-1)
    task = PendingTask(SimpleNamespace(ti=ti), REQUEST, EPOCH, request=request, is_excluded=is_excluded)
    now = EPOCH + timedelta(seconds=after_s)
    return reconcile({"key": task}, snapshot, queued=set(queued), leased=set(leased), uses=uses or {}, now=now)


@pytest.mark.parametrize(
    ("snapshot", "state", "expected"),
    [
        (Snapshot(1), {}, [SubmitTask("key")]),
        (WAITING, {}, [TakeOverRequest("key", PENDING)]),
        (WAITING, {"request": REQUEST}, []),
        (LEASED, {}, []),
        (LEASED, {"uses": {LEASE.id: LeaseUse.IN_USE}}, []),
        (LEASED, {"uses": {LEASE.id: LeaseUse.UNUSED}}, [HandOverTask("key", LEASE)]),
        (LEASED, {"uses": {LEASE.id: LeaseUse.LEFT_OVER}}, [EndLease("key", LEASE)]),
        (LEASED, {"uses": {LEASE.id: LeaseUse.BEGUN}, "queued": (), "after_s": 9.0}, [FollowRun("key", LEASE)]),
        (HALF_A_GANG, {"uses": {LEASE.id: LeaseUse.UNUSED}}, []),
        (HALF_A_GANG, {"uses": {LEASE.id: LeaseUse.LEFT_OVER}}, [EndLease("key", LEASE)]),
        (LEASED, {"leased": ["id"]}, []),
        (Snapshot(1), {"is_excluded": True}, []),
        (WAITING, {"queued": ()}, [TakeOverRequest("key", PENDING)]),
        (WAITING, {"queued": (), "after_s": 1.0}, [DropTask("key")]),
        (WAITING, {"request": REQUEST, "after_s": 60.0}, []),
    ],
)
def test_each_task_gets_the_action_that_its_state_needs(snapshot, state, expected):
    assert actions(snapshot, **state) == expected


def test_a_task_that_has_waited_too_long_fails_with_its_limit():
    (action,) = actions(WAITING, request=REQUEST, after_s=60.1)
    assert isinstance(action, FailTask)
    assert action.text.startswith("No device in time: asked to wait at most 60 s for 1 × gpu")


def test_a_young_task_is_not_looked_up_in_airflow():
    task = PendingTask(SimpleNamespace(ti=SimpleNamespace(id="id", executor_config={}, map_index=-1)), REQUEST, EPOCH)
    assert [is_settled(task, EPOCH + timedelta(seconds=seconds)) for seconds in (0.9, 1.0)] == [False, True]


def test_the_wait_timeout_of_a_paused_task_goes_on():
    paused = Snapshot(1, pending=(replace(PENDING, is_paused=True),))
    assert actions(paused, request=REQUEST, after_s=59) == []
    (fail,) = actions(paused, request=REQUEST, after_s=61)
    assert isinstance(fail, FailTask)
    assert "asked to wait at most 60 s" in fail.text
