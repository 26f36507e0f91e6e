"""A real HTTP server over a real database."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine

from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from tests.api_server import ApiServer, Speaker
from tests.store.conftest import empty, make_sqlite_engine


@pytest.fixture(scope="session")
def sqlite_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = make_sqlite_engine(tmp_path_factory.mktemp("sqlite") / "store.db")
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(sqlite_engine: Engine) -> Engine:
    """An engine for a database with empty tables."""
    empty(sqlite_engine)
    return sqlite_engine


@pytest.fixture
def server(engine: Engine) -> Iterator[ApiServer]:
    made = ApiServer(lambda: engine)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def store(engine: Engine) -> SqlStore:
    return SqlStore(engine)


@pytest.fixture
def speaker(server: ApiServer, engine: Engine) -> Iterator[Callable[..., Speaker]]:
    """Makes agents without a loop, enrolled by default."""
    made: list[Speaker] = []

    def make(worker_id: str = "worker-a", *, enrolled: bool = True) -> Speaker:
        speaker = Speaker(server.url, worker_id)
        made.append(speaker)
        return speaker.enrolled(engine) if enrolled else speaker

    yield make
    for speaker in made:
        speaker.http.close()
