"""The tallies, on SQLite and PostgreSQL."""

from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan, Reason, ReasonCode, Refuse, Wait
from hetero_airflow.model.run import RunEnd, TimeShares
from hetero_airflow.store import tables
from hetero_airflow.store.sql.speeds import LeaseSpeed
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.tallies import STEP_TIMES, Tally, TallyName, read_tallies
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, RequestWithdrawn, WorkerForgotten, WorkerLost
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_speed
from tests.store.contract import ACCOUNT, BUSY, MUCH_LATER, prepare

A100, CPU = "nvidia/gpu/a100-sxm4-40gb", "generic/cpu/x86-64"


def tallies(engine) -> tuple[Tally, ...]:
    with read_transaction(engine) as connection:
        return read_tallies(connection)


def counts(engine, name: TallyName) -> dict[tuple[str, str], tuple[int, int]]:
    """(label, bucket) → count and milliseconds."""
    return {(t.label, t.bucket): (t.count, t.total_ms) for t in tallies(engine) if t.name is name}


def at(seconds: float):
    return EPOCH + timedelta(seconds=seconds)


def end(store, lease, now, to=LeaseState.RELEASED, run_end=None) -> None:
    (outcome,) = store.move([LeaseMove(lease.id, lease.token, to, end=run_end)], now)
    assert outcome.state is to


def test_each_event_is_counted_once_with_its_label(engine):
    store = prepare(SqlStore(engine), "r0", "r1", "r2", "r3")
    never = Refuse("r3", Reason(ReasonCode.COUNT, "4 × gpu", "2"), "2 × gpu", ACCOUNT)
    places = (a_place("r0", **{"cpu": 1000, "GPU-0": 500}), a_place("r1", **{"GPU-0": 500}), a_place("r2", cpu=2000))
    leases = store.commit(Plan((*places, never)), at(4), at(64)).leases
    store.renew([(lease.id, lease.token) for lease in leases], at(70))
    store.move([LeaseMove(leases[0].id, leases[0].token, LeaseState.PREEMPTED)], at(20))
    end(store, leases[0], at(34), run_end=RunEnd.PAUSED)
    end(store, leases[1], at(4000), LeaseState.EVICTED)
    end(store, leases[2], at(4.25))
    assert counts(engine, TallyName.WAITED) == {
        (A100, "5"): (2, 7000),
        (CPU, "5"): (1, 2000),
    }, "r0 waited for 4 s, r1 for 3 s and r2 for 2 s"
    assert counts(engine, TallyName.REFUSED) == {("count", ""): (1, 0)}
    assert counts(engine, TallyName.PREEMPTED) == {("", ""): (1, 0)}
    assert counts(engine, TallyName.ENDED) == {("paused", ""): (1, 0), ("lost", ""): (1, 0), ("unknown", ""): (1, 0)}
    assert counts(engine, TallyName.HELD) == {
        (A100, "30"): (1, 30_000),
        (A100, "10800"): (1, 3_996_000),
        (CPU, "1"): (1, 250),
    }


def test_the_time_of_steps_is_divided_by_what_it_was_spent_on(engine):
    store = prepare(SqlStore(engine), "r1")
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(1), at(60)).leases
    for seconds in (100.0, 100.0, 300.0):
        shares = TimeShares(data=0.5, compute=0.3, save=0.2)
        store.add_speeds([LeaseSpeed(lease.id, a_speed(seconds=seconds, shares=shares))], at(seconds))
    store.add_speeds([LeaseSpeed(lease.id, a_speed(seconds=400.0))], at(400))
    spent = {name: counts(engine, name) for name in STEP_TIMES}
    assert {name: value[A100, ""][1] for name, value in spent.items()} == {
        TallyName.LOADED: 150_000,
        TallyName.COMPUTED: 90_000,
        TallyName.SAVED: 60_000,
    }


def test_what_changes_nothing_counts_nothing(engine):
    store = prepare(SqlStore(engine), "r1", "r2")
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(1), at(60)).leases
    end(store, lease, at(2))
    before = tallies(engine)
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED), LeaseMove("no", 1, LeaseState.EVICTED)], at(3))
    store.commit(Plan((Wait("r2", 1, BUSY, ACCOUNT), a_place("r1", **{"GPU-0": 1000}))), at(3), at(60))
    store.commit(Plan((a_place("r2", **{"no-such-device": 1000}),)), at(3), at(60))
    store.record([RequestWithdrawn("r2", "cleared")], at(3))
    assert tallies(engine) == before


def test_a_request_that_waits_again_has_waited_since_then(engine):
    """Its first submission stays, for its place in the queue."""
    store = prepare(SqlStore(engine), "r1")
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(2), at(60)).leases
    end(store, lease, at(1000), run_end=RunEnd.PAUSED)
    store.record([RequestSubmitted(a_pending("r1"))], at(1010))
    store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(1020), at(1060))
    assert counts(engine, TallyName.WAITED) == {(A100, "5"): (1, 2000), (A100, "15"): (1, 10_000)}


def test_tallies_outlive_the_history_the_worker_and_the_process(engine):
    store = prepare(SqlStore(engine), "r1")
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(2), at(60)).leases
    end(store, lease, at(9), run_end=RunEnd.FINISHED)
    before = tallies(engine)
    store.record([WorkerLost("worker-a")], at(10))
    store.record([WorkerForgotten("worker-a", MUCH_LATER)], MUCH_LATER)
    assert store.prune(MUCH_LATER) == 1
    assert SqlStore(engine).snapshot().workers == ()
    assert (len(before), tallies(engine)) == (3, before)


def test_the_clocks_of_two_schedulers_may_differ(engine):
    store = prepare(SqlStore(engine), "r0", "r1")
    store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, at(60))
    assert counts(engine, TallyName.WAITED) == {(A100, "1"): (1, 0)}, "r1 was submitted one second later"


def test_a_lease_from_before_the_tallies_counts_without_a_model(engine):
    store = prepare(SqlStore(engine), "r1")
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, at(60)).leases
    with engine.begin() as connection:
        connection.execute(update(tables.lease).values(device_model=None))
    end(store, lease, at(3), run_end=RunEnd.FAILED)
    assert counts(engine, TallyName.HELD) == {("//", "5"): (1, 3000)}
    assert counts(engine, TallyName.ENDED) == {("failed", ""): (1, 0)}


@pytest.mark.parametrize("rounds", [1, 8])
def test_the_number_of_rows_does_not_grow_with_the_history(engine, rounds):
    names = [f"r{number}" for number in range(20 * rounds)]
    store = prepare(SqlStore(engine), *names)
    for name in names:
        (lease,) = store.commit(Plan((a_place(name, **{"GPU-0": 1000}),)), at(1100), at(2000)).leases
        end(store, lease, at(1107), run_end=RunEnd.FINISHED)
    assert Counter(tally.name for tally in tallies(engine)) == {"waited": 1, "held": 1, "ended": 1}
    assert sum(tally.count for tally in tallies(engine)) == 3 * len(names)


def test_a_transaction_that_fails_counts_nothing(engine, monkeypatch):
    store = prepare(SqlStore(engine), "r1")
    monkeypatch.setattr("hetero_airflow.store.sql.plan_commit.write_dag_tokens", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, at(60))
    assert tallies(engine) == ()
    with engine.connect() as connection:
        assert connection.execute(select(tables.lease)).all() == []


def test_a_request_that_was_withdrawn_and_submitted_again_has_waited_all_the_time(engine):
    """As when it tries its next alternative first, or its gang is tried again."""
    store = prepare(SqlStore(engine), "r1")
    again = [RequestWithdrawn("r1", "another alternative"), RequestSubmitted(a_pending("r1"))]
    store.record(again, at(20))
    store.record(again[:1], at(30))
    store.record(again[1:], at(31))
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(40), at(100)).leases
    end(store, lease, at(1000), run_end=RunEnd.PAUSED)
    store.record(again[1:], at(1010))
    store.record(again, at(1015))
    store.record(again[:1], at(1016))
    store.record(again[1:], at(1017))
    store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), at(1020), at(1060))
    assert counts(engine, TallyName.WAITED) == {(A100, "60"): (1, 40_000), (A100, "15"): (1, 10_000)}
