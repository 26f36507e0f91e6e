"""The API server's own heartbeats: from its start until its end, also while the database is away."""

import asyncio
from datetime import UTC, datetime

import pytest

from hetero_airflow.web import app as app_module
from tests.api_server import make_app


async def serve(engine, condition) -> None:
    """Run the app as Airflow's API server does until the condition is true."""
    app = make_app(lambda: engine)
    async with asyncio.timeout(20), app.router.lifespan_context(app):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(app_module, "SERVER_HEARTBEAT_S", 0.05)


def test_it_is_there_since_it_serves_and_a_restart_begins_again(engine, store):
    at = datetime.now(UTC)
    asyncio.run(serve(engine, lambda: (beat := store.server_heartbeat()) and beat.at > beat.since))
    first = store.server_heartbeat()
    assert at < first.since < first.at
    asyncio.run(serve(engine, lambda: store.server_heartbeat().since > first.since))
    assert store.server_heartbeat().since > first.at


def test_a_database_that_is_away_is_said_once_and_weathered(engine, store, caplog):
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE hetero_server RENAME TO gone")
    turns = []

    def condition():
        turns.append(len(caplog.records))
        if len(turns) == 30:
            with engine.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE gone RENAME TO hetero_server")
        return len(turns) > 30 and store.server_heartbeat()

    asyncio.run(serve(engine, condition))
    assert caplog.text.count("can't record the heartbeats of agents") == 1
