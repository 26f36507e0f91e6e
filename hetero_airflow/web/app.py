"""The FastAPI app that the plugin mounts into Airflow's API server, under ``/hetero``."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from sqlalchemy import Engine

from hetero_airflow.errors import HeteroError
from hetero_airflow.web.agent_routes import AgentRoutes
from hetero_airflow.web.refusals import RefusalLog, refusal_handler
from hetero_airflow.web.server_heartbeat import send_server_heartbeats
from hetero_airflow.web.user_routes import UserRoutes


def airflow_engine() -> Engine:
    """The engine of Airflow's metadata database, in this process."""
    from airflow import settings

    assert settings.engine is not None, "Airflow opens its database before it serves"
    return settings.engine


def freeze_loaded_objects() -> None:
    """Let the collector leave alone what Airflow has loaded by the time it begins to serve.

    Else each full collection looks at all of it: with a thousand agents, the API server stood still for 0.6 to 1.0 s
    about every five seconds, on 2 busy cores. Nothing of what is loaded then goes before the process ends.
    """
    gc.collect()
    gc.freeze()


def make_app(engine: Callable[[], Engine] = airflow_engine) -> FastAPI:
    """All routes; nothing is opened before it serves, since Airflow makes the app before it forks.

    :param engine: gives the engine of a database that `airflow db migrate` has prepared
    """

    @asynccontextmanager
    async def serve(_app: FastAPI) -> AsyncIterator[None]:
        freeze_loaded_objects()
        beating = asyncio.create_task(send_server_heartbeats(engine))
        yield
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating

    app = FastAPI(title="hetero_airflow", openapi_url=None, docs_url=None, redoc_url=None, lifespan=serve)
    refusals = RefusalLog()
    app.include_router(AgentRoutes(engine, refusals).router())
    app.include_router(UserRoutes(engine).router())
    app.add_exception_handler(HeteroError, refusal_handler(refusals))
    return app
