"""The stores that the contract suite runs over."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event

from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.sql import transaction
from hetero_airflow.store.sql.plan_commit import PlanCommit
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import CommitResult
from hetero_airflow.testing import EPOCH
from tests.postgres_server import wait_until_blocked
from tests.store.contract import POSTGRES


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


@pytest.fixture
def beside_a_writer(postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[CommitResult]]:
    """Commits a plan; without the writers' lock, while that is not written yet, something else; both results."""

    def commit(plan: Plan, rival: Callable[[], CommitResult]) -> list[CommitResult]:
        monkeypatch.setattr(transaction, "_LIMIT_AND_TAKE_LOCK", transaction._READ_STATE)
        made = []
        with transaction.write_transaction(postgres_engine) as writer:
            made.append(PlanCommit(writer, EPOCH, EPOCH + timedelta(minutes=1), {}).commit(plan))
            thread = threading.Thread(target=lambda: made.append(rival()))
            thread.start()
            wait_until_blocked(postgres_engine)
            assert thread.is_alive(), "it waits for a row, or for an entry in a unique index"
        thread.join()
        return made

    return commit


@pytest.fixture(params=["sqlite", POSTGRES])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine for a database with empty tables."""
    made: Engine = request.getfixturevalue(f"{request.param}_engine")
    empty(made)
    return made


@pytest.fixture(params=["sqlite", POSTGRES])
def store(request: pytest.FixtureRequest) -> MemoryStore | SqlStore:
    """An empty store of each implementation in a database; with `contract.IN_MEMORY_TOO` of each at all."""
    if request.param == "memory":
        return MemoryStore()
    engine: Engine = request.getfixturevalue(f"{request.param}_engine")
    empty(engine)
    return SqlStore(engine)
