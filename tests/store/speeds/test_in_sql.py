"""Reported speeds in the tables."""

from __future__ import annotations

from sqlalchemy import update

from hetero_airflow.store import tables
from hetero_airflow.store.speeds.records import MAX_COUNTED, LeaseSpeed
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.testing import EPOCH, a_speed


def report(lease_id="lease-1") -> LeaseSpeed:
    return LeaseSpeed(lease_id, a_speed(2.0))


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
