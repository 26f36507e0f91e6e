"""The FastAPI app that the plugin mounts into Airflow's API server, under ``/hetero``."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from sqlalchemy import Engine

from hetero_airflow.errors import HeteroError
from hetero_airflow.web.agent_routes import AgentRoutes
from hetero_airflow.web.people_routes import PeopleRoutes
from hetero_airflow.web.refusals import Refusals, handler


def airflow_engine() -> Engine:
    """The engine of Airflow's metadata database, in this process."""
    from airflow import settings

    assert settings.engine is not None, "Airflow opens its database before it serves"
    return settings.engine


def make_app(engine: Callable[[], Engine] = airflow_engine) -> FastAPI:
    """All routes; nothing is opened before the first request, since Airflow makes the app before it forks.

    :param engine: gives the engine of a database that `airflow db migrate` has prepared
    """
    app = FastAPI(title="hetero_airflow", openapi_url=None, docs_url=None, redoc_url=None)
    refusals = Refusals()
    app.include_router(AgentRoutes(engine, refusals).router())
    app.include_router(PeopleRoutes(engine).router())
    app.add_exception_handler(HeteroError, handler(refusals))
    return app
