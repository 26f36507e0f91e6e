"""The migrations create the tables of `store.tables`, by hand and by a real `airflow db migrate`."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, select, text

from hetero_airflow import store
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker
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


@pytest.mark.postgres
def test_the_migrations_can_be_read_as_sql(make_postgres_database, capsys):
    config = Config(STORE / "alembic.ini")
    config.set_main_option("sqlalchemy.url", make_postgres_database())
    command.upgrade(config, "head", sql=True)
    written = capsys.readouterr().out
    assert all(f"CREATE TABLE {name} " in written for name in tables.metadata.tables)


@pytest.fixture
def airflow(url: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs an `airflow` command in a new home with the configured manager."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": MANAGER,
    }

    def run(*arguments: str, fails: bool = False) -> str:
        done = warm.run(arguments, environment, tmp_path)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

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
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {tables.VERSION_TABLE} SET version_num = '0015'"))
    assert "drop the tables whose names begin with hetero_" in airflow("db", "migrate", fails=True)
    assert SqlStore(engine).snapshot().workers == (a_worker(),)
    airflow("db", "reset", "--yes")
    assert SqlStore(engine).snapshot().workers == ()
