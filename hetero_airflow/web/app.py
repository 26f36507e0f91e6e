"""The FastAPI app that the plugin mounts in Airflow's API server under ``/hetero``, and that server's heartbeats."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from time import monotonic

from fastapi import FastAPI
from sqlalchemy import Engine

from hetero_airflow.errors import HeteroError, StoreError
from hetero_airflow.model.heartbeat import SERVER_HEARTBEAT_S
from hetero_airflow.store.sql.airflow_database import airflow_engine
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import ServerAlive
from hetero_airflow.web.agent_routes import AgentRoutes
from hetero_airflow.web.bodies import UnreadBodies
from hetero_airflow.web.fleet_reader import FleetReader
from hetero_airflow.web.http_refusals import RefusalLog, refusal_handler
from hetero_airflow.web.metrics_route import MetricsRoute
from hetero_airflow.web.page.page_routes import PageRoutes
from hetero_airflow.web.user_routes import UserRoutes

log = logging.getLogger(__name__)


def freeze_loaded_objects() -> None:
    """Exclude all objects that Airflow has loaded before it serves from garbage collection.

    Otherwise each full collection visits all of them: with a thousand agents, the API server paused for 0.6 to 1.0 s
    about every five seconds, on 2 busy cores. These objects live until the process ends anyway.
    """
    gc.collect()
    gc.freeze()


async def send_server_heartbeats(engine: Callable[[], Engine]) -> None:
    """Write heartbeats of this process to the database until cancelled; without them, silent agents are not lost.

    They come from the loop that answers agents and go to the database that stores the agents' heartbeats. If one of
    these stops, the heartbeats stop too.
    """
    store = SqlStore(engine())
    alive, problem = ServerAlive(is_new=True), ""
    while True:
        began = monotonic()
        try:
            await asyncio.to_thread(store.record, [alive], datetime.now(UTC))
        except StoreError as error:
            if str(error) != problem:
                problem = str(error)
                log.warning("The API server can't record the heartbeats of agents: %s", error)
        else:
            alive, problem = ServerAlive(), ""
        await asyncio.sleep(max(0.0, SERVER_HEARTBEAT_S - (monotonic() - began)))


def make_app(engine: Callable[[], Engine] = airflow_engine) -> FastAPI:
    """The app with all routes. It opens nothing before it serves, since Airflow makes the app before it forks.

    :param engine: returns the engine of a database that `airflow db migrate` has prepared
    """

    @asynccontextmanager
    async def serve(_app: FastAPI) -> AsyncIterator[None]:
        freeze_loaded_objects()
        heartbeats = asyncio.create_task(send_server_heartbeats(engine))
        yield
        heartbeats.cancel()
        with suppress(asyncio.CancelledError):
            await heartbeats

    app = FastAPI(title="hetero_airflow", openapi_url=None, docs_url=None, redoc_url=None, lifespan=serve)
    refusals, fleet = RefusalLog(), FleetReader(engine)
    for routes in (AgentRoutes(engine, refusals), UserRoutes(fleet), MetricsRoute(fleet), PageRoutes(fleet)):
        app.include_router(routes.router())
    app.add_middleware(UnreadBodies)
    app.add_exception_handler(HeteroError, refusal_handler(refusals))
    return app
