"""The stores that the contract suite runs over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event

from hetero_airflow.store import tables
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.sql.store import SqlStore

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(scope="session")
def postgres_engine(make_postgres_database: Callable[[], str]) -> Iterator[Engine]:
    engine = create_engine(make_postgres_database())
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


def make_sqlite_engine(path: Path) -> Engine:
    """An engine as in Airflow: foreign keys are checked, readers and the writer do not block each other."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def set_pragmas(connection, _record) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")  # as `fsync=off` of the PostgreSQL server

    return engine


@pytest.fixture(scope="session")
def sqlite_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = make_sqlite_engine(tmp_path_factory.mktemp("sqlite") / "store.db")
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


def empty(engine: Engine) -> None:
    """The tables as after the migrations."""
    with engine.begin() as connection:
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(table.delete())
        tables.insert_state(tables.state, connection)


@pytest.fixture(name="empty")
def give_empty() -> Callable[[Engine], None]:
    """Deletes all rows of the tables in an engine's database."""
    return empty


@pytest.fixture(params=["sqlite", POSTGRES])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine for a database with empty tables."""
    made: Engine = request.getfixturevalue(f"{request.param}_engine")
    empty(made)
    return made


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def store(request: pytest.FixtureRequest) -> MemoryStore | SqlStore:
    """An empty store of each implementation."""
    if request.param == "memory":
        return MemoryStore()
    engine: Engine = request.getfixturevalue(f"{request.param}_engine")
    empty(engine)
    return SqlStore(engine)
