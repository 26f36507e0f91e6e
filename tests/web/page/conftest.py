"""The page's routes over a real database, asked by users of Airflow's simple auth manager."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import airflow.api_fastapi.app
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hetero_airflow.errors import HeteroError
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.web import fleet_reader
from hetero_airflow.web.http_refusals import RefusalLog, refusal_handler
from hetero_airflow.web.page import page_routes
from hetero_airflow.web.page.page_routes import PageRoutes

READABLE = {"dag", "weird <script>"}
"""The DAGs that every user of these tests may read."""


@pytest.fixture
def ask(engine, monkeypatch) -> Iterator[Callable[..., TestClient]]:
    """Makes a client for a user with this role."""
    manager = SimpleAuthManager()
    monkeypatch.setattr(airflow.api_fastapi.app._AuthManagerState, "instance", manager)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda self, **_: set(READABLE))
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id, **_: None)
    monkeypatch.setattr(DagEdges, "refresh", lambda self, dag_ids: {})
    monkeypatch.setattr(page_routes, "read_dag_owners", lambda engine: {"dag": "ana", "hidden": "secret"})
    states: dict[str, str] = {}
    monkeypatch.setattr(
        fleet_reader, "read_states", lambda keys, name: {key: states[name] for key in keys if name in states}
    )
    app = FastAPI()
    app.include_router(PageRoutes(fleet_reader.FleetReader(lambda: engine)).router())
    app.add_exception_handler(HeteroError, refusal_handler(RefusalLog()))

    @contextmanager
    def client(role: str | None = "admin") -> Iterator[TestClient]:
        app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role=role)
        with TestClient(app, base_url="http://test/page/", raise_server_exceptions=False) as made:
            made.states = states
            yield made

    return client


@pytest.fixture
def show(ask: Callable[..., Any]) -> Callable[..., Any]:
    """What an administrator is shown at a path."""

    def shown(path: str, **options: Any) -> Any:
        with ask() as client:
            answer = client.get(path, **options)
        assert answer.status_code == 200
        return answer.json()

    return shown
