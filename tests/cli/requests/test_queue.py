from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.requests.changes import queue_outcomes
from hetero_airflow.cli.requests.queue import QueueEntry, queue_entries, queue_json, queue_report
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.testing import EPOCH, a_device, a_lease, a_pending, a_place, a_worker

NOW = EPOCH + timedelta(minutes=10)
ACCOUNT = Account("test", "as the test says")
BUSY = Reason(ReasonCode.BUSY, "2 × gpu", "1 free")
RUN = "manual__2026-01-01T00:00:00+00:00"


def granted(
    request_id: str, *claims: Claim, state: LeaseState = LeaseState.ACTIVE, worker_id: str = "worker-a"
) -> Lease:
    return a_lease(request_id, worker_id, ago_s=-5).model_copy(update={"claims": claims, "state": state})


WAITING = a_pending("b", ["a100:2", "gpu:0.5"], priority="high", map_index=3, run_id=RUN, try_number=2)
PLACED_NEXT = a_pending("a", "cpu:2")
NEVER = a_pending("c", "h100")
LEFT_OUT = a_pending("d", "gpu")
SNAPSHOT = Snapshot(
    1,
    (a_worker("worker-a"), a_worker("worker-b", (a_device("SIM-0", simulated=True),))),
    pending=(NEVER, WAITING, LEFT_OUT, PLACED_NEXT),
    leases=(
        granted(
            "r1",
            Claim(device_id="GPU-0", share_milli=1000, memory_bytes=2**35),
            Claim(device_id="GPU-1", share_milli=250, memory_bytes=2**33),
            Claim(device_id="cpu", share_milli=2000, memory_bytes=2**30, cores=(0, 1)),
        ),
        granted("r2", Claim(device_id="SIM-0", share_milli=1000), state=LeaseState.EXPIRED, worker_id="worker-b"),
        granted("r3", Claim(device_id="GPU-9", share_milli=1000), state=LeaseState.GRANTED, worker_id="worker-gone"),
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


@pytest.fixture
def stored(installation):
    """How the request of the waiting task stands; afterwards it is as before."""
    engine = create_engine(installation.url, poolclass=NullPool)
    store = SqlStore(engine)

    def read():
        return next(pending for pending in store.snapshot().pending if pending.task_id == "waits")

    before = read()
    yield read
    installation.run("hetero", "unpause", "dag", "waits", "--run-id", RUN)
    installation.run("hetero", "bump", "dag", "waits", "--run-id", RUN, "--priority", before.request.priority)
    assert read() == before
    engine.dispose()


def test_a_waiting_task_is_paused_and_unpaused(installation, stored):
    done = installation.run("hetero", "pause", "dag", "waits", "--run-id", RUN)
    text = "is paused: it gets no devices until `airflow hetero unpause`.\n"
    assert (done.returncode, done.stdout) == (0, f"dag.waits[3] in run {RUN} {text}")
    assert stored().is_paused
    assert "a pause by a person" in installation.run("hetero", "queue").stdout
    explained = installation.run("hetero", "explain", "dag", RUN, "waits", "--map-index", "3").stdout
    assert "a pause by a person" in explained
    assert "Starts" not in explained
    done = installation.run("hetero", "unpause", "dag", "waits", "--run-id", RUN, "--map-index", "3")
    assert done.stdout.endswith("waits for its devices.\n")
    assert not stored().is_paused


def test_bump_takes_the_next_class_or_the_named_one(installation, stored):
    assert installation.run("hetero", "bump", "dag", "waits", "--run-id", RUN).stdout.endswith(
        "waits with the priority high.\n"
    )
    assert stored().request.priority == "high"
    installation.run("hetero", "bump", "dag", "waits", "--run-id", RUN, "--priority", "low")
    assert stored().request.priority == "low"


@pytest.mark.parametrize("command", ["pause", "unpause", "bump"])
def test_a_running_task_is_left_alone(installation, command):
    done = installation.run("hetero", command, "dag", "placed")
    assert done.returncode == 1
    text = f"has its devices already, so {command} does nothing; `airflow hetero cancel` ends it."
    assert done.stdout == f"dag.placed in run run {text}\n"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("nix", "task"), "no run of a DAG nix"),
        (("dag", "task", "--run-id", "nix"), "no such run"),
        (("dag", "nix"), "no such task in the run. Its tasks are placed, plain, unread"),
        (("dag", "plain"), "a task that has ended: success"),
        (("dag", "placed", "nix"), "no such task in the run"),
        (("dag", "placed", "--map-index", "0"), "a task that is not mapped. Leave --map-index out"),
        (("dag", "placed", "waits"), f"tasks that wait or run in 2 runs: {RUN}, run. Name one of them with --run-id"),
    ],
)
@pytest.mark.parametrize("command", ["cancel", "pause", "unpause", "bump"])
def test_a_wrong_name_changes_nothing(installation, command, names, found):
    assert found in installation.complaint(command, *names)


def test_a_task_that_gets_its_devices_at_the_same_moment_is_reported():
    first, second, third = (a_pending(name) for name in ("first", "second", "third"))
    after = Snapshot(2, pending=(replace(first, is_paused=True),), holders={second.id: second})
    outcomes = queue_outcomes((first, second, third), after, "pause", lambda pending: f"paused: {pending.is_paused}")
    texts = ["paused: True", "has its devices already, so pause does nothing; `airflow hetero cancel` ends it"]
    assert [(outcome.text, outcome.is_done) for outcome in outcomes] == [
        (texts[0], True),
        (texts[1], False),
        ("has just ended", False),
    ]
