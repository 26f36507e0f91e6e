"""The API server's own word in the database: an agent's silence counts only while somebody was there to hear it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from sqlalchemy import Engine

from hetero_airflow.errors import StoreError
from hetero_airflow.model.heartbeat import SERVER_HEARTBEAT_S
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import ServerAlive

log = logging.getLogger(__name__)


async def send_server_heartbeats(engine: Callable[[], Engine]) -> None:
    """Say that this process is there, until cancelled.

    From the loop that answers agents, and to the database that keeps what they say: where these stand still, so does
    this.
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
                log.warning("Workers' agents are not heard: %s", error)
        else:
            alive, problem = ServerAlive(), ""
        await asyncio.sleep(max(0.0, SERVER_HEARTBEAT_S - (monotonic() - began)))
