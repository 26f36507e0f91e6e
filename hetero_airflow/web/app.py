"""The FastAPI app that the plugin mounts into Airflow's API server, under ``/hetero``."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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


@asynccontextmanager
async def keep_answering(_app: FastAPI) -> AsyncIterator[None]:
    """Let the collector leave alone what Airflow has loaded by the time it begins to serve.

    Else each full collection looks at all of it: with a thousand agents, the API server stood still for 0.6 to 1.0 s
    about every five seconds, on 2 busy cores. Nothing of what is loaded then goes before the process ends.
    """
    gc.collect()
    gc.freeze()
    yield


def make_app(engine: Callable[[], Engine] = airflow_engine) -> FastAPI:
    """All routes; nothing is opened before the first request, since Airflow makes the app before it forks.

    :param engine: gives the engine of a database that `airflow db migrate` has prepared
    """
    app = FastAPI(title="hetero_airflow", openapi_url=None, docs_url=None, redoc_url=None, lifespan=keep_answering)
    refusals = Refusals()
    app.include_router(AgentRoutes(engine, refusals).router())
    app.include_router(PeopleRoutes(engine).router())
    app.add_exception_handler(HeteroError, handler(refusals))
    return app
