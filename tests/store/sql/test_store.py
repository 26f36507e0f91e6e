"""What only a database does: several stores, errors of the driver, locks, unreadable rows, and the trial of a lease."""

import logging
import threading
import traceback
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone

import psycopg2
import pytest
from sqlalchemy import create_engine, event, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError

from hetero_airflow.errors import StoreError, StoreUnavailable
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.run import Transition
from hetero_airflow.store import tables
from hetero_airflow.store.sql import transaction as sql_transaction
from hetero_airflow.store.sql.lease_trial import try_lease
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, TransitionsNoted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

LATER = EPOCH + timedelta(seconds=60)


@contextmanager
def statements(engine):
    """Collects the statements that the engine executes."""
    seen: list[str] = []

    def note(_connection, _cursor, statement, *_):
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def prepared(engine, *requests: str) -> SqlStore:
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker()), *(RequestSubmitted(a_pending(request)) for request in requests)], EPOCH)
    return store


# -- several stores on one database ------------------------------------------------------------------------------------


def test_what_one_store_writes_another_reads(engine):
    first, second = prepared(engine, "r1", "r2"), SqlStore(engine)
    assert second.snapshot() == first.snapshot()
    (lease,) = first.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, LATER).leases
    assert second.snapshot() == first.snapshot()
    move_lease(second, lease.id, lease.token, LeaseState.RELEASED, LATER)
    assert first.snapshot() == second.snapshot() == SqlStore(engine).snapshot()


def test_a_plan_that_lost_a_race_is_refused_in_part(engine):
    first, second = prepared(engine, "r1", "r2", "r3"), SqlStore(engine)
    plan = Plan((a_place("r2", **{"GPU-0": 1000}), a_place("r3", **{"GPU-1": 1000})))
    first.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, LATER)
    made = second.commit(plan, EPOCH, LATER)
    assert ([lease.request_id for lease in made.leases], made.raced) == (["r3"], ("r2",))


def test_what_was_deleted_since_is_gone_from_the_next_snapshot(engine):
    reader, writer = prepared(engine, "r1"), SqlStore(engine)
    assert len(reader.snapshot().pending) == 1
    writer.record([RequestWithdrawn("r1", "cleared")], EPOCH)
    assert writer.prune(LATER) == 1
    assert reader.snapshot() == writer.snapshot() == SqlStore(engine).snapshot()


def test_a_snapshot_is_of_one_moment(engine):
    reader, elsewhere = prepared(engine, "r1"), create_engine(engine.url)
    before = SqlStore(elsewhere).snapshot()
    plans = [Plan((a_place("r1", cpu=1000),))]

    def write_meanwhile(_connection, _cursor, statement, *_):
        if "hetero_state" in statement and plans:
            SqlStore(elsewhere).commit(plans.pop(), EPOCH, LATER)

    event.listen(engine, "after_cursor_execute", write_meanwhile)
    during = reader.snapshot()
    event.remove(engine, "after_cursor_execute", write_meanwhile)
    assert not plans
    assert during == before
    assert reader.snapshot() == SqlStore(elsewhere).snapshot() != before
    elsewhere.dispose()


def test_pruning_leaves_no_row_behind_even_where_foreign_keys_are_off(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/plain.db")
    tables.metadata.create_all(engine)
    store = prepared(engine, "r1")
    (lease,) = store.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, LATER).leases
    store.record([TransitionsNoted("r1", (Transition(EPOCH, "Granted", "waiting"),))], EPOCH)
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    store.prune(LATER)
    with engine.connect() as connection:
        for table in (tables.request, tables.lease, tables.lease_device, tables.decision, tables.story):
            assert connection.execute(select(table)).all() == []
    engine.dispose()


def test_a_database_that_was_reset_is_read_again(engine, empty):
    store = prepared(engine, "r1")
    store.record([RequestWithdrawn("r1", "x")], EPOCH)
    assert store.snapshot().workers
    empty(engine)
    assert (store.snapshot().sequence, store.snapshot().workers) == (0, ())


@pytest.mark.postgres
@pytest.mark.parametrize("rival", [a_place("r2", **{"GPU-0": 1000}), a_place("r1", **{"GPU-1": 1000})])
def test_nothing_is_leased_twice_even_without_the_writers_lock(postgres_engine, empty, beside_a_writer, rival):
    empty(postgres_engine)
    first, second = prepared(postgres_engine, "r1", "r2"), SqlStore(postgres_engine)
    plan = Plan((a_place("r1", **{"GPU-0": 1000}),))
    granted, refused = beside_a_writer(plan, lambda: second.commit(Plan((rival,)), EPOCH, LATER))
    assert len(granted.leases) == 1
    assert refused.raced == (rival.request_id,)
    assert {key: usage.share_milli for key, usage in first.snapshot().usage.items()} == {("worker-a", "GPU-0"): 1000}


GPU = a_device("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")


@pytest.mark.postgres
def test_no_physical_device_is_leased_twice_even_without_the_writers_lock(postgres_engine, empty, beside_a_writer):
    """Two schedulers grant the same GPU to their own workers at the same moment."""
    empty(postgres_engine)
    first, second = prepared(postgres_engine, "r1", "r2"), SqlStore(postgres_engine)
    first.record([WorkerSeen(a_worker(id_, (a_cpu(), GPU))) for id_ in ("container-1", "container-2")], EPOCH)
    places = {id_: a_place(id_, f"container-{id_[1:]}", **{GPU.id: 1000}) for id_ in ("r1", "r2")}
    first_plan, second_plan = (Plan((places[id_],)) for id_ in ("r1", "r2"))
    granted, refused = beside_a_writer(first_plan, lambda: second.commit(second_plan, EPOCH, LATER))
    assert len(granted.leases) == 1
    assert (refused.leases, refused.raced) == ((), ("r2",))
    used = {key: usage.share_milli for key, usage in first.snapshot().usage.items()}
    assert used == {("container-1", GPU.id): 1000}


def test_of_grants_of_one_physical_device_at_the_same_moment_one_succeeds(engine):
    """Each round, three schedulers want the GPU for their own worker; the winner frees it for the next round."""
    rounds, names = 20, ("c1", "c2", "c3")
    requests = [f"{name}-{number}" for name in names for number in range(rounds)]
    store = prepared(engine, *requests)
    store.record([WorkerSeen(a_worker(name, (a_cpu(), GPU))) for name in names], EPOCH)
    barrier, commits = threading.Barrier(len(names)), {name: [] for name in names}

    def schedule(name):
        own_store = SqlStore(engine)
        for number in range(rounds):
            own_store.snapshot()
            barrier.wait(600)
            place = a_place(f"{name}-{number}", name, **{GPU.id: 1000})
            commit = own_store.commit(Plan((place,)), EPOCH, LATER)
            commits[name].append(commit)
            barrier.wait(600)
            for lease in commit.leases:
                move_lease(own_store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
            barrier.wait(600)

    threads = [threading.Thread(target=schedule, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    granted = [sum(len(commits[name][number].leases) for name in names) for number in range(rounds)]
    assert granted == [1] * rounds
    assert all(usage.share_milli == 0 for usage in store.snapshot().usage.values())


def test_the_table_refuses_what_no_condition_caught(engine):
    prepared(engine)
    for values in ({"used_milli": 1001}, {"used_milli": -1}, {"used_memory_bytes": -1}):
        gpu = update(tables.device).where(tables.device.c.id == "GPU-0").values(values)
        with pytest.raises(IntegrityError), engine.begin() as connection:
            connection.execute(gpu)
    cpu = update(tables.device).where(tables.device.c.id == "cpu").values(used_memory_bytes=2**40)
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(cpu)


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_an_unchanged_snapshot_is_one_small_query(engine):
    store = prepared(engine, "r1")
    before = store.snapshot()
    with statements(engine) as seen:
        assert store.snapshot() is before
    assert len([statement for statement in seen if statement.startswith("SELECT")]) == 1


def test_a_changed_snapshot_reads_only_the_rows_that_changed(engine):
    store = prepared(engine, *(f"r{n}" for n in range(20)))
    store.snapshot()
    store.commit(Plan((a_place("r3", cpu=1000),)), EPOCH, LATER)
    read = 0

    def count(_connection, cursor, *_):
        nonlocal read
        read += max(cursor.rowcount, 0)

    if engine.dialect.name == "postgresql":
        event.listen(engine, "after_cursor_execute", count)
    with statements(engine) as seen:
        store.snapshot()
    if engine.dialect.name == "postgresql":
        event.remove(engine, "after_cursor_execute", count)
        assert read == 6, "state, cpu, request, DAG, lease and its claim"
    assert not any("hetero_device.inventory" in statement for statement in seen)


def test_an_unchanged_heartbeat_writes_one_row(engine):
    store = prepared(engine)
    with statements(engine) as seen:
        store.record([WorkerSeen(a_worker())], LATER)
    written = [s for s in seen if s.startswith(("UPDATE", "INSERT", "DELETE")) and "hetero_state" not in s]
    assert [s.split()[1] for s in written] == ["hetero_telemetry"]


def test_waits_that_are_no_news_write_nothing(engine):
    store = prepared(engine, "r1")
    plan = Plan((Wait("r1", 1, Reason(ReasonCode.BUSY, "1", "0"), Account("fifo", "busy")),))
    store.commit(plan, EPOCH, LATER)
    for writer in (store, SqlStore(engine)):
        with statements(engine) as seen:
            writer.commit(plan, EPOCH, LATER)
        assert not any(statement.startswith(("UPDATE", "INSERT")) for statement in seen)


def test_thousands_at_once_fit_into_statements(engine):
    store = SqlStore(engine)
    ids = [f"r{n:04}" for n in range(1500)]
    store.record([RequestSubmitted(a_pending(request)) for request in ids], EPOCH)
    reason, account = Reason(ReasonCode.BUSY, "1", "0"), Account("fifo", "busy")
    store.commit(Plan(tuple(Wait(request, 1, reason, account) for request in ids)), EPOCH, LATER)
    assert [pending.id for pending in store.snapshot().pending] == ids
    assert len(store.request_history("dag", "run", ids[-1]).decisions) == 1
    store.record([RequestWithdrawn(request, "cleared") for request in ids], EPOCH)
    assert store.prune(LATER) == 1500
    assert SqlStore(engine).snapshot().pending == ()


# -- when it fails -----------------------------------------------------------------------------------------------------

CALLS = {
    "record": lambda store: store.record([WorkerSeen(a_worker())], EPOCH),
    "snapshot": lambda store: store.snapshot(),
    "commit": lambda store: store.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, LATER),
    "renew": lambda store: store.renew([("r1.1", 1)], LATER),
    "move": lambda store: move_lease(store, "r1.1", 1, LeaseState.RELEASED, EPOCH),
    "request_history": lambda store: store.request_history("dag", "run", "r1"),
    "telemetry": lambda store: store.telemetry(),
    "host_data": lambda store: store.host_data(),
    "last_seen": lambda store: store.last_seen(),
    "heartbeats": lambda store: store.heartbeats(),
    "server_heartbeat": lambda store: store.server_heartbeat(),
    "last_decisions": lambda store: store.last_decisions(),
    "prune": lambda store: store.prune(EPOCH),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_database_that_was_not_migrated_is_reported(call, tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(StoreUnavailable, match=r"no such table: hetero_\w+\. Run `airflow db migrate`\."):
        call(SqlStore(engine))
    engine.dispose()


@pytest.mark.postgres
def test_a_postgresql_that_was_not_migrated_is_reported(make_postgres_database):
    engine = create_engine(make_postgres_database())
    with pytest.raises(StoreUnavailable, match=r"does not exist.*Run `airflow db migrate`\."):
        SqlStore(engine).snapshot()
    engine.dispose()


def test_tables_without_their_row_are_reported(engine):
    with engine.begin() as connection:
        connection.execute(tables.state.delete())
    for call in (CALLS["snapshot"], CALLS["record"]):
        with pytest.raises(StoreUnavailable, match=r"found no row in hetero_state\. Run `airflow db migrate`"):
            call(SqlStore(engine))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_database_that_is_down_is_reported_without_its_password(call):
    engine = create_engine("postgresql+psycopg2://ada:s3cr3t@127.0.0.1:1/airflow?connect_timeout=1")
    with pytest.raises(StoreUnavailable) as raised:
        call(SqlStore(engine))
    assert raised.value.asked == "the store in postgresql airflow at 127.0.0.1"
    assert "refused" in raised.value.found
    assert "sql_alchemy_conn" in raised.value.remedy
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("url", ["ada:s3cr3t@db/airflow", "ada@db/airflow?password=s3cr3t"])
def test_a_password_in_the_drivers_own_text_is_hidden(url):
    def connect():
        raise psycopg2.OperationalError("invalid dsn: host=db password=s3cr3t")

    engine = create_engine(f"postgresql+psycopg2://{url}", creator=connect)
    with pytest.raises(StoreUnavailable) as raised:
        SqlStore(engine).snapshot()
    assert raised.value.found == "invalid dsn: host=db password=***"
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


def test_a_writer_that_holds_the_lock_too_long_is_reported(engine, monkeypatch):
    prepared(engine)
    if engine.dialect.name == "sqlite":
        waiting = create_engine(engine.url, connect_args={"timeout": 0.1})
    else:
        waiting = create_engine(engine.url)
    store = SqlStore(waiting)
    monkeypatch.setattr(sql_transaction, "LOCK_TIMEOUT_S", 0.1)
    with sql_transaction.write_transaction(engine):
        assert len(store.snapshot().workers) == 1, "readers do not wait"
        with pytest.raises(StoreUnavailable, match=r"The writers' lock .*Another process holds it for too long"):
            CALLS["renew"](store)
    CALLS["renew"](store)
    waiting.dispose()


@pytest.mark.postgres
def test_a_writer_that_hangs_loses_the_lock(postgres_engine, empty, monkeypatch):
    empty(postgres_engine)
    store = prepared(postgres_engine)
    hanging = ExitStack()
    with monkeypatch.context() as impatient:
        impatient.setattr(sql_transaction, "LOCK_TIMEOUT_S", 0.1)
        hanging.enter_context(sql_transaction.write_transaction(postgres_engine)).is_visible = True
    store.record([RequestSubmitted(a_pending("r1"))], EPOCH)  # would wait 10 s for the lock, and has it after 0.3 s
    with pytest.raises(StoreUnavailable):
        hanging.close()
    assert len(store.snapshot().pending) == 1


def test_an_error_in_the_middle_leaves_nothing_behind(engine):
    store = prepared(engine, "r1")
    before = SqlStore(engine).snapshot()
    with pytest.raises(StatementError, match="has no zone"):
        store.record([RequestWithdrawn("r1", "x"), WorkerSeen(a_worker("b"))], datetime(2026, 1, 1))  # noqa: DTZ001
    assert store.snapshot() == before


# -- rows that can't be read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "column", "key", "counts"),
    [
        (tables.worker, "inventory", "worker-a", (0, 2)),
        (tables.device, "inventory", "GPU-0", (0, 2)),
        (tables.request, "request", "r1", (1, 1)),
    ],
    ids=["worker", "device", "request"],
)
def test_one_row_that_can_not_be_read_is_logged_and_stops_nothing_else(engine, caplog, table, column, key, counts):
    prepared(engine, "r1", "r2")
    with engine.begin() as connection:
        connection.execute(update(table).where(table.c.id == key).values({column: '{"of": "another version"}'}))
    with caplog.at_level(logging.ERROR):
        snapshot = SqlStore(engine).snapshot()
    assert (len(snapshot.workers), len(snapshot.pending)) == counts
    assert len(caplog.records) == 1
    assert "left out of scheduling" in caplog.text


def test_a_claim_that_can_not_be_read_is_an_error_since_its_lease_would_look_free(engine):
    store = prepared(engine, "r1")
    store.commit(Plan((a_place("r1", cpu=1000),)), EPOCH, LATER)
    with engine.begin() as connection:
        connection.execute(update(tables.lease_device).values(cores="no JSON"))
    with pytest.raises(StoreError, match="A row of the store as JSON can't be used; found "):
        store.snapshot()
    with engine.begin() as connection:
        connection.execute(update(tables.lease_device).values(cores="[0]"))
    assert store.snapshot() == SqlStore(engine).snapshot()


def test_nothing_but_json_and_plain_values_is_in_the_tables(engine):
    prepared(engine, "r1").commit(Plan((a_place("r1", cpu=1000),)), EPOCH, LATER)
    for table in tables.metadata.sorted_tables:
        kinds = {type(column.type).__name__ for column in table.columns}
        assert kinds <= {"String", "Text", "Integer", "BigInteger", "Boolean", "UtcDateTime", "Date"}


def test_times_come_back_aware_and_in_utc(engine):
    store = SqlStore(engine)
    there = EPOCH.astimezone(timezone(timedelta(hours=9)))
    store.record([WorkerSeen(a_worker(devices=(a_device(),)))], there)
    last_seen = store.last_seen()["worker-a"]
    assert last_seen == EPOCH
    assert last_seen.utcoffset() == timedelta(0)


def test_a_second_state_row_is_refused(engine):
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(tables.state), {"id": 2, "sequence": 0, "fence": 0, "pruned": 0})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM hetero_state")).scalar_one() == 1


def test_a_trial_leaves_nothing_and_no_snapshot_shows_it(engine):
    """The trial of a lease needs the whole path through the tables."""
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker())], EPOCH)
    before = store.snapshot()
    try_lease(engine, EPOCH)
    try_lease(engine, EPOCH)
    assert SqlStore(engine).snapshot() == before
    with engine.connect() as connection:
        for table in (tables.lease, tables.request, tables.lease_device, tables.tally):
            assert connection.scalar(select(func.count()).select_from(table)) == 0


def test_a_trial_without_tables_says_what_to_do():
    with pytest.raises(StoreUnavailable, match="Run `airflow db migrate`"):
        try_lease(create_engine("sqlite://"), EPOCH)
