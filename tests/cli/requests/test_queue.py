from __future__ import annotations

from datetime import timedelta

import pytest

from hetero_airflow.cli.requests.queue import QueueEntry, queue_entries, queue_json, queue_report
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_place, a_worker

NOW = EPOCH + timedelta(minutes=10)
ACCOUNT = Account("test", "as the test says")
BUSY = Reason(ReasonCode.BUSY, "2 × gpu", "1 free")
RUN = "manual__2026-01-01T00:00:00+00:00"


def a_lease(
    request_id: str, *claims: Claim, state: LeaseState = LeaseState.ACTIVE, worker_id: str = "worker-a"
) -> Lease:
    return Lease(
        id=f"{request_id}.1",
        request_id=request_id,
        worker_id=worker_id,
        alternative=0,
        claims=claims,
        token=1,
        state=state,
        granted_at=EPOCH + timedelta(seconds=5),
        expires_at=NOW,
    )


WAITING = a_pending("b", ["a100:2", "gpu:0.5"], priority="high", map_index=3, run_id=RUN, try_number=2)
PLACED_NEXT = a_pending("a", "cpu:2")
NEVER = a_pending("c", "h100")
LEFT_OUT = a_pending("d", "gpu")
SNAPSHOT = Snapshot(
    1,
    (a_worker("worker-a"), a_worker("worker-b", (a_device("SIM-0", simulated=True),))),
    pending=(NEVER, WAITING, LEFT_OUT, PLACED_NEXT),
    leases=(
        a_lease(
            "r1",
            Claim(device_id="GPU-0", share_milli=1000, memory_bytes=2**35),
            Claim(device_id="GPU-1", share_milli=250, memory_bytes=2**33),
            Claim(device_id="cpu", share_milli=2000, memory_bytes=2**30, cores=(0, 1)),
        ),
        a_lease("r2", Claim(device_id="SIM-0", share_milli=1000), state=LeaseState.EXPIRED, worker_id="worker-b"),
        a_lease("r3", Claim(device_id="GPU-9", share_milli=1000), state=LeaseState.GRANTED, worker_id="worker-gone"),
    ),
)
PLAN = Plan(
    (
        a_place("a", cpu=2000),
        Wait("b", 1, BUSY, ACCOUNT),
        Refuse("c", BUSY, "worker worker-a has 2 × nvidia/a100", ACCOUNT),
        Wait("unknown", 2, BUSY, ACCOUNT),
    )
)
PLACED = {"r1": a_pending("train", try_number=2), "r2": a_pending("serve", map_index=0)}


def test_the_order_is_the_plans_and_undecided_requests_come_last():
    place, wait, refuse, _ = PLAN.decisions
    assert queue_entries(SNAPSHOT, PLAN) == [
        QueueEntry(PLACED_NEXT, place),
        QueueEntry(WAITING, wait),
        QueueEntry(NEVER, refuse),
        QueueEntry(LEFT_OUT, None),
    ]


def test_both_tables(render):
    queue = queue_entries(SNAPSHOT, PLAN)
    assert (
        render(queue_report(queue, SNAPSHOT, PLACED, NOW), width=110)
        == """\
Waiting: 4
#  TASK                                      WAITS   ASKS FOR, AND WHY IT WAITS
-  dag.a                                     10 min  2 × cpu
   run                                       medium  fits on worker-a now: the scheduler's next cycle places
                                                     it
1  dag.b[3]                                  10 min  2 × nvidia/a100
   manual__2026-01-01T00:00:00+00:00, try 2  high    or 0.5 of a gpu, cooperative
                                                     busy: asked 2 × gpu, found 1 free
-  dag.c                                     10 min  1 × nvidia/h100
   run                                       medium  can never run: worker worker-a has 2 × nvidia/a100
-  dag.d                                     10 min  1 × gpu
   run                                       medium  not decided
More about the first: airflow hetero explain dag run a

Leases: 3
TASK, AND WHAT IT HOLDS                                   STATE    GRANTED
dag.train                                                 active   9 min 55 s ago
run, try 2
  nvidia/a100-sxm4-40gb GPU-0
  0.25 of nvidia/a100-sxm4-40gb GPU-1, cooperative: 8GiB
  2 cpu cores (0-1), 1GiB of host memory
  on worker-a
dag.serve[0]                                              expired  9 min 55 s ago
run
  nvidia/a100-sxm4-40gb (simulated) SIM-0
  on worker-b
a task that is not known any more                         granted  9 min 55 s ago
  GPU-9
  on worker-gone"""
    )


def test_nothing_waits_and_nothing_is_leased(render):
    assert render(queue_report([], Snapshot(0), {}, NOW)) == "Waiting: 0\n\nLeases: 0"


@pytest.mark.parametrize(
    ("pending", "command"),
    [
        (WAITING, f"airflow hetero explain dag {RUN} b --map-index 3"),
        (a_pending("x", dag_id="my dag", run_id="it's"), "airflow hetero explain 'my dag' 'it'\"'\"'s' x"),
    ],
)
def test_the_command_that_explains_more_can_be_pasted(render, pending, command):
    text = render(queue_report([QueueEntry(pending, None)], Snapshot(0), {}, NOW), width=40)
    assert f"More about the first: {command}" in text.splitlines()


def test_json_says_the_same():
    waiting = queue_json(queue_entries(SNAPSHOT, PLAN), SNAPSHOT, PLACED)
    assert waiting["waiting"][1] == {
        "dag_id": "dag",
        "run_id": RUN,
        "task_id": "b",
        "map_index": 3,
        "try_number": 2,
        "position": 1,
        "request": WAITING.request.model_dump(mode="json"),
        "weight": 1,
        "submitted_at": "2026-01-01T00:00:00+00:00",
        "reason": "busy: asked 2 × gpu, found 1 free",
    }
    assert [each["position"] for each in waiting["waiting"]] == [None, 1, None, None]
    serve = {"dag_id": "dag", "run_id": "run", "task_id": "serve", "map_index": 0, "try_number": 1}
    assert waiting["leases"][1:] == [
        SNAPSHOT.leases[1].model_dump(mode="json") | {"task": serve},
        SNAPSHOT.leases[2].model_dump(mode="json") | {"task": None},
    ]
