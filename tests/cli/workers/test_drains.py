"""``airflow hetero drain``, ``undrain`` and ``forget``."""

from datetime import timedelta

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.workers.devices import holds_here
from hetero_airflow.cli.workers.drains import drain_report, undrain_report
from hetero_airflow.cli.workers.enrolment import enroll_worker, forget_worker
from hetero_airflow.cli.workers.workers import worker_report, workers_json
from hetero_airflow.errors import HeteroError, StoreError
from hetero_airflow.executor.explanation.drains import MAX_REASON, Target, drain_hold, find_target, undrain_events
from hetero_airflow.model.devices.health import DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import HealthNoted, HoldPlaced, RequestSubmitted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker
from tests.sqlite_store import SqliteStore

LATER = EPOCH + timedelta(hours=1)
SICK = Hold("worker-a", "GPU-1", HoldKind.QUARANTINED, "XID 79", EPOCH, "a burn-in passes")


@pytest.fixture
def store():
    """Two workers; a task runs on GPU-0 of the first, and its GPU-1 is quarantined."""
    store = SqliteStore()
    pending = a_pending("r1", map_index=3)
    store.record([WorkerSeen(a_worker()), WorkerSeen(a_worker("worker-b")), RequestSubmitted(pending)], EPOCH)
    store.commit(Plan((a_place("r1", **{"GPU-0": 500, "cpu": 1000}),)), EPOCH, LATER)
    health = DeviceHealth(HealthState.PROBATION, 2, EPOCH, cause="XID 79")
    store.record([HoldPlaced(SICK), HealthNoted("worker-a", "GPU-1", health)], EPOCH)
    return store


def drain(store, text, now=LATER, moves=False, reason=""):
    before = store.snapshot()
    hold = drain_hold(find_target(text, before), before, moves=moves, reason=reason, now=now)
    store.record([HoldPlaced(hold)], now)
    return hold


def undrain(store, text):
    before = store.snapshot()
    target = find_target(text, before)
    store.record(undrain_events(target, before), LATER)
    return undrain_report(target, before, store.snapshot())


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("rack/7", Target("rack/7", "")),
        ("rack/7/MIG-GPU-1/0/0", Target("rack/7", "MIG-GPU-1/0/0")),
        ("rack/cpu", Target("rack", "cpu")),
        ("rack", Target("rack", "")),
    ],
)
def test_ids_may_hold_slashes(text, target):
    workers = (a_worker("rack", (a_cpu(),)), a_worker("rack/7", (a_device("MIG-GPU-1/0/0"),)))
    assert find_target(text, Snapshot(1, workers)) == target


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker-c", "Worker 'worker-c' can't be used; found no such worker. Use worker-b or worker-a."),
        ("worker-x/GPU-0", "found no such worker. Use worker-"),
        ("", "Worker '' can't be used; found no such worker. `airflow hetero workers` lists them."),
        (
            "worker-a/GPU-2",
            "Device 'GPU-2' of worker worker-a can't be used; found no such device. Use GPU-1 or GPU-0.",
        ),
        ("worker-a/", "Device '' of worker worker-a can't be used; found no such device."),
        ("worker-a/\x1b[31m", r"Device '\x1b[31m' of worker worker-a"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_the_nearest(store, text, message):
    with pytest.raises(HeteroError) as caught:
        find_target(text, store.snapshot())
    assert message in str(caught.value)


def test_a_device_that_is_gone_can_be_undrained_while_it_has_a_hold(store):
    drain(store, "worker-a/GPU-0")
    store.record([WorkerSeen(a_worker("worker-b", (a_cpu(),)))], LATER)
    hold = Hold("worker-b", "GPU-9", HoldKind.DRAINED, "new fan", EPOCH, "undrained")
    store.record([HoldPlaced(hold)], LATER)
    undrain(store, "worker-b/GPU-9")
    assert hold not in store.snapshot().holds


# -- drain -------------------------------------------------------------------------------------------------------------


def test_a_drained_device_says_who_brings_it_back(store, render):
    hold = drain(store, "worker-a/GPU-0", reason="new fan")
    assert hold == Hold(
        "worker-a", "GPU-0", HoldKind.DRAINED, "new fan", LATER, "a person runs `airflow hetero undrain worker-a/GPU-0`"
    )
    assert (
        render(drain_report(hold, store.snapshot()))
        == """\
worker-a/GPU-0 is drained: 1 device out, new fan.
1 running task, to finish there:
  dag.r1[3] in run run, on GPU-0, cpu"""
    )


def test_tasks_that_must_move_are_named(store, render):
    hold = drain(store, "worker-a", moves=True)
    assert (
        render(drain_report(hold, store.snapshot()), width=120)
        == """\
worker-a is drained: 3 devices out, no reason given.
1 running task, to save at the scheduler's next heartbeat and go on elsewhere:
  dag.r1[3] in run run, on GPU-0, cpu"""
    )


def test_a_worker_without_tasks_says_so(store, render):
    hold = drain(store, "worker-b")
    assert render(drain_report(hold, store.snapshot())).splitlines()[1] == "No task runs there."


def test_draining_again_keeps_when_and_why_and_may_add_the_move(store):
    first = drain(store, "worker-a", EPOCH, reason="new fan")
    second = drain(store, "worker-a", LATER, moves=True)
    assert (second.since, second.cause, second.moves) == (EPOCH, "new fan", True)
    assert [hold for hold in store.snapshot().holds if hold.kind is HoldKind.DRAINED] == [second]
    assert first != second


def test_a_reason_that_is_too_long_is_refused(store):
    with pytest.raises(HeteroError, match=f"Use at most {MAX_REASON}"):
        drain(store, "worker-a", reason="x" * (MAX_REASON + 1))


# -- undrain -----------------------------------------------------------------------------------------------------------


def test_undraining_a_worker_lifts_all_drains_and_names_the_remaining_holds(store, render):
    for target in ("worker-a", "worker-a/GPU-0"):
        drain(store, target, reason="new fan")
    returns = "back when a person runs `airflow hetero undrain worker-a"
    assert (
        render(undrain(store, "worker-a"), width=200)
        == f"""\
worker-a takes tasks again: it was drained since 2026-01-01 01:00:00 UTC: new fan; {returns}`.
worker-a/GPU-0 takes tasks again: it was drained since 2026-01-01 01:00:00 UTC: new fan; {returns}/GPU-0`.
worker-a/GPU-1 stays out: quarantined since 2026-01-01 00:00:00 UTC: XID 79; back when a burn-in passes."""
    )
    assert store.snapshot().holds == (SICK,)


def test_undraining_a_quarantined_device_forgets_its_errors(store, render):
    assert "takes tasks again: it was quarantined" in render(undrain(store, "worker-a/GPU-1"))
    assert (store.snapshot().holds, store.health()) == ((), {})


def test_a_device_of_a_drained_worker_stays_out(store, render):
    drain(store, "worker-a")
    drain(store, "worker-a/GPU-0")
    first, second = render(undrain(store, "worker-a/GPU-0"), width=200).splitlines()
    assert first.startswith("worker-a/GPU-0 takes")
    assert second.startswith("worker-a stays out: drained since")


def test_undraining_a_device_without_a_hold_changes_nothing(store, render):
    before = store.snapshot()
    assert render(undrain(store, "worker-b/GPU-0")) == "worker-b/GPU-0 has no hold; it takes tasks already."
    assert store.snapshot() is before


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_workers_table_shows_state_and_reason(store, render):
    drain(store, "worker-b", reason="new fan")
    text = render(worker_report(store.snapshot(), {"worker-a": LATER, "worker-b": LATER}, {}, LATER, 300), width=120)
    lines = text.splitlines()
    assert next(line.split()[:2] for line in lines if line.startswith("worker-b ")) == ["worker-b", "online"]
    assert any(line.split()[:3] == ["engine", "local", "drained"] for line in lines)
    assert "0 / 0 nvidia/a100-sxm4-40gb, 2 devices not leasable" in text
    assert any(line.startswith("worker-a/GPU-1 is quarantined since 2026-01-01 00:00:00 UTC: XID 79") for line in lines)
    assert any(line.startswith("worker-b is drained since 2026-01-01 01:00:00 UTC: new fan;") for line in lines)


def test_holds_are_in_the_json_of_workers(store):
    document = workers_json(store.snapshot(), {}, {})
    assert [worker["holds"] for worker in document] == [
        [
            {
                "worker_id": "worker-a",
                "device_id": "GPU-1",
                "kind": "quarantined",
                "cause": "XID 79",
                "since": "2026-01-01T00:00:00+00:00",
                "returns": "a burn-in passes",
                "until": None,
                "moves": False,
            }
        ],
        [],
    ]


def test_the_holds_of_a_worker_are_read_if_the_database_answers(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    assert holds_here(engine, "worker-a") == ()
    tables.metadata.create_all(engine)
    SqlStore(engine).record([HoldPlaced(SICK)], EPOCH)
    assert (holds_here(engine, "worker-a"), holds_here(engine, "worker-b")) == ((SICK,), ())
    engine.dispose()


@pytest.fixture
def database(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    tables.metadata.create_all(engine)
    return SqlStore(engine)


def test_a_lost_worker_is_forgotten(database, render):
    database.record([WorkerSeen(a_worker()), WorkerLost("worker-a")], EPOCH)
    with pytest.raises(StoreError, match="seen, or held a lease, after"):
        list(forget_worker(database, "worker-a", EPOCH + timedelta(seconds=59)))
    assert render(forget_worker(database, "worker-a", LATER)).splitlines() == [
        "Worker worker-a is forgotten: its devices, holds, error records and key are deleted.",
        "An agent of this name has to enrol again, with a secret from `airflow hetero enroll`.",
    ]
    assert database.snapshot().workers == ()
    with pytest.raises(StoreError, match="found no such worker"):
        list(forget_worker(database, "worker-a", LATER))


def test_the_secret_of_a_worker_that_never_came_is_forgotten(database, render):
    render(enroll_worker(database._engine, "node-7", EPOCH))
    text = render(forget_worker(database, "node-7", LATER))
    assert text.startswith("Worker node-7 is forgotten: the holds, error records and key of this name are deleted.")


def test_an_online_worker_is_not_forgotten(database):
    database.record([WorkerSeen(a_worker())], EPOCH)
    with pytest.raises(StoreError) as caught:
        list(forget_worker(database, "worker-a", LATER))
    assert str(caught.value) == (
        "hetero_airflow can't forget worker 'worker-a'; found that it is online. "
        "Stop its agent, or the scheduler on it, and wait until the worker is lost."
    )
