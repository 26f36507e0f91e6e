"""The migrations create the tables of `store.tables`, by hand and by a real `airflow db migrate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event, inspect, select, update

from hetero_airflow import store
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.sql.grant_key import grant_signer
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import HoldPlaced, RequestSubmitted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease
from tests.warm_airflow import WarmAirflow

STORE = Path(store.__file__).parent
MANAGER = "hetero_airflow.executor.db_manager.HeteroDBManager"


def configuration(engine: Engine) -> Config:
    """Alembic's configuration as `HeteroDBManager` makes it, without Airflow."""
    config = Config(STORE / "alembic.ini")
    config.attributes["engine"] = engine
    return config


def differences(engine: Engine) -> list[object]:
    """Differences between the database and the tables; other tables are ignored."""

    def is_ours(_object, name, type_, *_):
        return type_ != "table" or name in tables.metadata.tables

    options = {"include_object": is_ours, "compare_type": True, "compare_server_default": True}
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata)


def checks(engine: Engine) -> dict[str, set[str]]:
    """Table → its CHECK constraints, which alembic does not compare."""
    inspector = inspect(engine)
    return {name: {check["name"] for check in inspector.get_check_constraints(name)} for name in tables.metadata.tables}


def state(engine: Engine) -> list[tuple[int, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(tables.state))]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fresh.db"
    return request.getfixturevalue("make_postgres_database")()


@pytest.fixture
def engine(url):
    engine = create_engine(url)
    yield engine
    engine.dispose()


def test_the_migrations_make_the_tables_and_take_them_away(engine):
    for _ in range(2):
        command.upgrade(configuration(engine), "head")
        assert differences(engine) == []
        assert state(engine) == [(1, 0, 0, 0, None, None)]
    migrated = checks(engine)
    assert inspect(engine).has_table(tables.VERSION_TABLE)
    SqlStore(engine).record([WorkerSeen(a_worker())], EPOCH)
    command.upgrade(configuration(engine), "head")
    assert SqlStore(engine).snapshot().workers == (a_worker(),)
    command.downgrade(configuration(engine), "base")
    assert set(inspect(engine).get_table_names()) == {tables.VERSION_TABLE}
    tables.metadata.create_all(engine)
    assert checks(engine) == migrated
    assert state(engine) == [(1, 0, 0, 0, None, None)]


def test_what_is_stored_outlives_a_downgrade_and_an_upgrade(engine):
    if engine.dialect.name == "sqlite":  # as Airflow does
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))
    command.upgrade(configuration(engine), "head")
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("r1")), RequestSubmitted(a_pending("r2"))], EPOCH)
    grant_signer(engine)
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, EPOCH).leases
    command.downgrade(configuration(engine), "0001")
    command.upgrade(configuration(engine), "head")
    snapshot = SqlStore(engine).snapshot()
    assert snapshot.leases == (lease.model_copy(update={"starter": "before 0011"}),), "no scheduler may claim its start"
    assert (list(snapshot.holders), [request.id for request in snapshot.pending]) == (["r1"], ["r2"])
    assert state(engine)[0][4] is None, "the key went with its column"
    grant_signer(engine)
    assert differences(engine) == []


def test_what_is_leased_while_physical_ids_are_added_stays_with_its_first_worker(engine):
    """Before, two workers could lease one GPU; a device without a UUID is known with the next inventory."""
    gpu = a_device("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")
    npu = a_device("0000:07:00.0", vendor="ascend", kind="npu", pci="0000:07:00.0")
    command.upgrade(configuration(engine), "head")
    store = SqlStore(engine)
    workers = [a_worker(id_, (a_cpu(), gpu, npu)) for id_ in ("a", "b")]
    store.record([*map(WorkerSeen, workers), *(RequestSubmitted(a_pending(id_)) for id_ in ("r1", "r2", "r3"))], EPOCH)
    (lease,) = store.commit(Plan((a_place("r1", "b", **{gpu.id: 1000, npu.id: 1000}),)), EPOCH, EPOCH).leases
    command.downgrade(configuration(engine), "0006")
    with engine.begin() as connection:  # as another worker leased it then
        is_a = (tables.device.c.worker_id == "a", tables.device.c.id == gpu.id)
        connection.execute(update(tables.device).where(*is_a).values(used_milli=1000))
    command.upgrade(configuration(engine), "head")
    with engine.connect() as connection:
        columns = (tables.device.c.worker_id, tables.device.c.held_id)
        held = connection.execute(select(*columns).where(tables.device.c.held_id.is_not(None))).all()
    assert [tuple(row) for row in held] == [("a", gpu.id)]
    store = SqlStore(engine)
    for worker in workers:
        store.record([WorkerSeen(worker.model_copy(update={"boot_id": "boot"}))], EPOCH)
    assert store.commit(Plan((a_place("r2", "a", **{npu.id: 1000}),)), EPOCH, EPOCH).raced == ("r2",)
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)
    assert store.commit(Plan((a_place("r3", "b", **{gpu.id: 1000}),)), EPOCH, EPOCH).raced == ("r3",)
    assert store.commit(Plan((a_place("r2", "a", **{npu.id: 1000}),)), EPOCH, EPOCH).raced == ()
    assert differences(engine) == []


@pytest.mark.postgres
def test_the_migrations_can_be_read_as_sql(make_postgres_database, capsys):
    config = Config(STORE / "alembic.ini")
    config.set_main_option("sqlalchemy.url", make_postgres_database())
    command.upgrade(config, "head", sql=True)
    written = capsys.readouterr().out
    assert all(f"CREATE TABLE {name} " in written for name in tables.metadata.tables)


def test_devices_that_are_there_count_from_the_migration_on(engine):
    command.upgrade(configuration(engine), "head")
    store = SqlStore(engine)
    instance = a_device("MIG-1", partition="1g.5gb", parent="GPU-1")
    parent = a_device("GPU-1", leasable=False, problem="MIG mode")
    store.record([WorkerSeen(a_worker("a", (a_cpu(), a_device(simulated=True), parent, instance)))], EPOCH)
    store.record([WorkerSeen(a_worker("b")), WorkerSeen(a_worker("c")), WorkerLost("b")], EPOCH)
    store.record([HoldPlaced(Hold("c", "", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it"))], EPOCH)
    present = tables.device_presence
    query = select(*(column for column in present.c if column.name != "since")).order_by(*present.primary_key)
    with engine.connect() as connection:
        before = connection.execute(query.where(present.c.until.is_(None))).all()
    assert len(before) == 6
    command.downgrade(configuration(engine), "0012")
    command.upgrade(configuration(engine), "head")
    with engine.connect() as connection:
        assert connection.execute(query).all() == before


@pytest.fixture
def airflow(url: str, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Runs an `airflow` command in a new home with the configured manager."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": MANAGER,
    }

    def run(*arguments: str) -> None:
        done = warm.run(arguments, environment, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    with closing(WarmAirflow(environment)) as warm:
        yield run


@pytest.mark.system
def test_airflow_db_migrate_makes_the_tables(airflow, engine):
    for arguments in (["migrate"], ["migrate", "--use-migration-files"], ["check-migrations", "-t", "1"]):
        airflow("db", *arguments)
        assert differences(engine) == []
        assert inspect(engine).has_table("dag_run")
        assert SqlStore(engine).snapshot().sequence == (arguments != ["migrate"])
        if arguments == ["migrate"]:
            SqlStore(engine).record([WorkerSeen(a_worker())], EPOCH)
    airflow("db", "reset", "--yes")
    assert SqlStore(engine).snapshot().workers == ()
