"""What is learned from: ended leases and reported speeds, in every store."""

import math
from datetime import timedelta

import pytest
from sqlalchemy import update

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.run import EndedRun, RunEnd, ServiceRecord
from hetero_airflow.store import tables
from hetero_airflow.store.sql.speeds import MAX_COUNTED, LeaseSpeed
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_speed, a_worker

MINUTE = timedelta(minutes=1)


def grant(store, *pending, now=EPOCH, **shares):
    store.record([RequestSubmitted(request) for request in pending], now)
    return store.commit(Plan(tuple(a_place(request.id, **shares) for request in pending)), now, now + MINUTE).leases


def end(store, leases, now, how=RunEnd.FINISHED, to=LeaseState.RELEASED):
    store.move([LeaseMove(lease.id, lease.token, to, "", how) for lease in leases], now)


def seen(store):
    store.record([WorkerSeen(a_worker())], EPOCH)
    return store


def test_a_run_says_what_was_held_for_how_long_and_how_it_ended(store):
    pending = a_pending("r1", ["h100", "a100:2"], attained_service_s={"nvidia/t4": 30.0})
    leases = grant(seen(store), pending, **{"GPU-0": 1000, "GPU-1": 1000, "cpu": 3000})
    end(store, leases, EPOCH + 5 * MINUTE)
    run = EndedRun(
        store.snapshot().sequence,
        "r1",
        ("dag", "r1"),
        pending.request.alternatives[0],
        "nvidia/a100-sxm4-40gb",
        2,
        300.0,
        RunEnd.FINISHED,
        EPOCH + 5 * MINUTE,
        {"nvidia/t4": 30.0},
    )
    assert store.runs() == (run,)


def test_a_request_that_waits_again_keeps_its_place_and_its_service(store):
    pending = a_pending("r1")
    seen(store)
    for number, (how, to) in enumerate(
        [(RunEnd.PAUSED, LeaseState.RELEASED), (None, LeaseState.EVICTED), (None, LeaseState.RELEASED)]
    ):
        begin = EPOCH + 10 * number * MINUTE
        end(store, grant(store, pending, now=begin, **{"GPU-0": 1000}), begin + MINUTE, how, to)
    store.record([RequestSubmitted(pending)], EPOCH + 60 * MINUTE)
    record = ServiceRecord(pending.submitted_at, {"nvidia/a100-sxm4-40gb": 120.0}, 2)
    assert store.service_records(["r1", "r2"]) == {"r1": record}, "it is not known that it went on after the third one"
    assert store.service_records([]) == {}


def test_a_run_on_cores_alone_counts_them(store):
    end(store, grant(seen(store), a_pending("r1", "cpu:3"), cpu=3000), EPOCH + MINUTE, RunEnd.PAUSED)
    (run,) = store.runs()
    assert (run.device_class, run.devices, run.end) == ("generic/x86-64", 3, RunEnd.PAUSED)


def test_only_what_ended_after_the_last_look_is_reported(store):
    first, second = grant(seen(store), a_pending("r1"), a_pending("r2"), cpu=1000)
    end(store, [second], EPOCH + MINUTE)
    (run,) = store.runs()
    assert run.request_id == "r2"
    assert store.runs(run.sequence) == ()
    end(store, [first], EPOCH + 2 * MINUTE, RunEnd.FAILED)
    (run,) = store.runs(run.sequence)
    assert (run.request_id, run.end) == ("r1", RunEnd.FAILED)
    assert [run.request_id for run in store.runs()] == ["r2", "r1"]


def test_runs_that_end_in_one_transaction_are_all_reported(store):
    end(store, grant(seen(store), a_pending("r1"), a_pending("r2"), a_pending("r3"), cpu=1000), EPOCH + MINUTE)
    assert [run.request_id for run in store.runs()] == ["r1", "r2", "r3"]


def test_a_lease_whose_task_never_ran_is_no_run_and_an_evicted_one_is_lost(store):
    first, second = grant(seen(store), a_pending("r1"), a_pending("r2"), cpu=1000)
    end(store, [first], EPOCH + MINUTE, how=None)
    end(store, [second], EPOCH + MINUTE, how=None, to=LeaseState.EVICTED)
    assert [(run.request_id, run.end) for run in store.runs()] == [("r2", RunEnd.LOST)]


def test_a_request_that_paused_and_finished_is_two_runs(store):
    pending = a_pending("r1")
    end(store, grant(seen(store), pending, **{"GPU-0": 1000}), EPOCH + MINUTE, RunEnd.PAUSED)
    again = a_pending("r1", attained_service_s={"nvidia/a100-sxm4-40gb": 60.0})
    end(store, grant(store, again, now=EPOCH + 5 * MINUTE, **{"GPU-0": 1000}), EPOCH + 7 * MINUTE)
    runs = store.runs()
    assert [(run.request_id, run.end, run.held_s) for run in runs] == [
        ("r1", RunEnd.PAUSED, 60.0),
        ("r1", RunEnd.FINISHED, 120.0),
    ]
    assert runs[1].attained_service_s == {"nvidia/a100-sxm4-40gb": 60.0}


def test_runs_of_a_database_outlive_the_process_but_not_their_devices(engine):
    store = seen(SqlStore(engine))
    leases = grant(store, a_pending("r1"), **{"GPU-0": 1000}) + grant(store, a_pending("r2"), **{"GPU-1": 1000})
    end(store, leases, EPOCH + MINUTE)
    assert [run.request_id for run in SqlStore(engine).runs()] == ["r1", "r2"]
    store.record([WorkerSeen(a_worker(devices=(a_cpu(), a_device("GPU-1", index=1))))], EPOCH + MINUTE)
    assert [run.request_id for run in SqlStore(engine).runs()] == ["r2"]


def test_a_run_whose_request_can_not_be_read_is_passed_over(engine, caplog):
    store = seen(SqlStore(engine))
    end(store, grant(store, a_pending("r1"), a_pending("r2"), cpu=1000), EPOCH + MINUTE)
    with engine.begin() as connection:
        connection.execute(update(tables.request).where(tables.request.c.id == "r1").values(request="{"))
    assert [run.request_id for run in store.runs()] == ["r2"]
    assert "request 'r1'" in caplog.text


def test_a_run_of_which_another_version_says_more_is_passed_over(engine, caplog):
    store = seen(SqlStore(engine))
    end(store, grant(store, a_pending("r1"), a_pending("r2"), a_pending("r3"), cpu=1000), EPOCH + MINUTE)
    with engine.begin() as connection:
        lease, request = tables.lease.c, tables.request.c
        connection.execute(update(tables.lease).where(lease.request_id == "r1").values(outcome="unheard_of"))
        connection.execute(update(tables.request).where(request.id == "r2").values(served="[1]"))
    assert [run.request_id for run in store.runs()] == ["r3"]
    assert "request 'r2'" in caplog.text


A100, T4 = "nvidia/a100", "nvidia/t4"


def report(lease_id="lease-1", steps_per_s=2.0, seconds=60.0, on=A100, **fields) -> LeaseSpeed:
    measured = a_speed(steps_per_s, seconds=seconds, steps=round(steps_per_s * seconds), device_class=on, **fields)
    return LeaseSpeed(lease_id, measured)


def test_a_report_counts_only_with_what_is_new(store):
    for _ in range(3):
        store.add_speeds([report(seconds=60.0)], EPOCH)
    store.add_speeds([report(seconds=90.0)], EPOCH)
    store.add_speeds([report(seconds=80.0)], EPOCH)
    (speed,) = store.speeds()[1]
    assert (speed.steps, speed.seconds) == (180, 90.0)


def test_several_leases_of_a_task_add_up(store):
    store.add_speeds([report("lease-1", 2.0), report("lease-2", 4.0), report("lease-3", 8.0, on=T4)], EPOCH)
    first, second = store.speeds()[1]
    assert (first.device_class, first.steps, first.seconds) == (A100, 360, 120.0)
    assert first.log_speed == pytest.approx(math.log(math.sqrt(8)))
    assert first.deviation > 0.3, "the runs differ"
    assert second == report("lease-3", 8.0, on=T4).measured


def test_the_newest_reported_end_of_each_lease_is_kept_until_it_is_over(store):
    ends = {name: EPOCH + n * MINUTE for n, name in enumerate(("lease-1", "lease-2", "lease-3"), 5)}
    for lease_id, end in ends.items():
        store.add_speeds([report(lease_id, ends={lease_id: end})], EPOCH)
    store.add_speeds([report("lease-1", seconds=90.0, ends={"lease-1": EPOCH + 9 * MINUTE})], EPOCH + MINUTE)
    (speed,) = store.speeds()[1]
    assert speed.ends == ends | {"lease-1": EPOCH + 9 * MINUTE}
    store.add_speeds([report("lease-3", seconds=90.0)], EPOCH + 6 * MINUTE)
    (speed,) = store.speeds()[1]
    assert speed.ends == {"lease-1": EPOCH + 9 * MINUTE, "lease-3": ends["lease-3"]}


def test_only_what_changed_since_is_read(store):
    store.add_speeds([report(on=A100)], EPOCH)
    sequence, _ = store.speeds()
    store.add_speeds([report(on=T4)], EPOCH)
    later, (speed,) = store.speeds(sequence)
    assert (later > sequence, speed.device_class) == (True, T4)


def test_speeds_that_were_long_not_measured_are_deleted(store):
    store.add_speeds([report(on=A100)], EPOCH)
    store.add_speeds([report(on=T4)], EPOCH + 2 * MINUTE)
    store.prune(EPOCH + MINUTE)
    assert [speed.device_class for speed in store.speeds()[1]] == [T4]


def test_a_reported_speed_outlives_the_process(engine):
    SqlStore(engine).add_speeds([report()], EPOCH)
    sequence, speeds = SqlStore(engine).speeds()
    assert speeds == (report().measured,)
    assert SqlStore(engine).speeds(sequence) == (sequence, ())


def test_a_repeated_report_changes_nothing_that_readers_see(engine):
    store = SqlStore(engine)
    store.add_speeds([report()], EPOCH)
    before = store.snapshot().sequence
    store.add_speeds([report()], EPOCH)
    assert store.snapshot().sequence == before


def test_the_counted_leases_of_a_pair_are_bounded(engine):
    store = SqlStore(engine)
    for number in range(MAX_COUNTED + 5):
        store.add_speeds([report(f"lease-{number}")], EPOCH)
    with engine.connect() as connection:
        (record,) = connection.execute(tables.speed.select()).all()
    assert record.record.count("lease-") == MAX_COUNTED


def test_an_unreadable_row_is_passed_over_and_then_replaced(engine, caplog):
    store = SqlStore(engine)
    store.add_speeds([report()], EPOCH)
    with engine.begin() as connection:
        connection.execute(update(tables.speed).values(record='{"measured": 1}'))
    assert store.speeds()[1] == ()
    assert "speed 'dag.task'" in caplog.text
    store.add_speeds([report()], EPOCH)
    assert store.speeds()[1] == (report().measured,)
