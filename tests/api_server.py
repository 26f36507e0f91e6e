"""A real HTTP server with our routes, which can be stopped and started again; and a worker's agent by hand."""

import secrets
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI
from held_port import HeldPort
from sqlalchemy import Engine

from hetero_airflow.agent.protocol import HEARTBEAT_PATH, INVENTORY_PATH, PREFIX, Heartbeat, InventoryReport
from hetero_airflow.agent.tokens import hash_secret, public_key_hex, request_digest, sign_token
from hetero_airflow.model.worker import Worker
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.testing import a_worker

with warnings.catch_warnings():  # of Airflow's own imports
    warnings.simplefilter("ignore")
    from hetero_airflow.web.app import make_app

SECRET = "s" * 43


class ApiServer:
    """Serves the app under the prefix, as Airflow's API server does, on a port that stays the same."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._held = HeldPort()
        self.port = self._held.number
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns when it answers."""
        app = FastAPI(openapi_url=None)
        app.mount(PREFIX, make_app(self._engine))
        config = uvicorn.Config(app, "127.0.0.1", self.port, log_level="error", lifespan="off", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
            assert self._thread.is_alive()

    def stop(self) -> None:
        """Connections are closed, requests are answered."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(600)
        self._server = self._thread = None


class Speaker:
    """An agent by hand: what an honest one sends, and whatever else a test wants to."""

    _nonces = count(time.time_ns())

    def __init__(self, url: str, worker_id: str = "worker-a") -> None:
        self.worker_id = worker_id
        self.instance = secrets.token_hex(16)
        self.key = Ed25519PrivateKey.generate()
        self.http = httpx.Client(base_url=f"{url}{PREFIX}", timeout=30)

    def enrolled(self, engine: Engine) -> "Speaker":
        """Itself, once its key is in the store."""
        keys, now = WorkerKeys(engine), datetime.now(UTC)
        keys.open_enrolment(self.worker_id, hash_secret(SECRET), now + timedelta(hours=1), now)
        keys.enrol(self.worker_id, hash_secret(SECRET), public_key_hex(self.key), now)
        return self

    def token(self, method: str, path: str, body: bytes, **given: Any) -> str:
        """As an agent signs it, but for what is given."""
        fields: dict[str, Any] = {"worker": self.worker_id, "instance": self.instance, "nonce": next(self._nonces)}
        fields |= {"request": request_digest(method, path, body), "now": datetime.now(UTC)} | given
        return sign_token(fields.pop("key", self.key), **fields)

    def send(self, method: str, path: str, body: bytes, token: str | None = None) -> httpx.Response:
        """One request, with that token or a good one."""
        token = token or self.token(method, path, body)
        return self.http.request(method, path, content=body, headers={"Authorization": f"Bearer {token}"})

    def worker(self, **fields: Any) -> Worker:
        """The worker of the agent: by default a CPU and two A100."""
        return a_worker(self.worker_id, **{"engine": "celery"} | fields)

    def report(self, worker: Worker | None = None, **fields: Any) -> httpx.Response:
        """Tell an inventory."""
        body = InventoryReport(worker=worker or self.worker(), **fields).model_dump_json(exclude_defaults=True).encode()
        return self.send("PUT", INVENTORY_PATH, body)

    def beat(self, **fields: Any) -> httpx.Response:
        """Tell that the worker is there."""
        body = Heartbeat(**{"worker": self.worker_id} | fields).model_dump_json(exclude_defaults=True).encode()
        return self.send("POST", HEARTBEAT_PATH, body)
