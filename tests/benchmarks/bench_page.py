"""What the page's routes cost an API server: 1,000 workers × 8 devices, 10,000 waiting requests. ``make bench-page``.

The routes run in this process, over SQLite, without Airflow's login. For each: milliseconds of the first answer and of
an unchanged poll (CPU time), and the bytes of both.
"""

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import airflow.api_fastapi.app
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine

from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, StoreEvent, WorkerSeen
from hetero_airflow.testing import a_device, a_pending, a_place, a_worker
from hetero_airflow.web.fleet_reader import FleetReader
from hetero_airflow.web.page.page_routes import PageRoutes

WORKERS, DEVICES, WAITING, POLLS = 1000, 8, 10_000, 50
TASK = {"run_id": "run", "task_id": f"waits{WAITING - 1}"}
VIEWS: dict[str, tuple[str, dict[str, object]]] = {
    "summary": ("summary", {}),
    "map": ("map", {}),
    "table": ("devices", {"limit": 100}),
    "queue": ("queue", {"limit": 100}),
    "timeline": ("timeline", {"limit": 50}),
    "usage": ("usage", {}),
    "worker": ("worker", {"id": "worker-500"}),
    "placement": ("placement/dag", TASK),
}


def fill(store: SqlStore) -> None:
    """A fleet of which seven of eight devices are leased, and a long queue."""
    now = datetime.now(UTC)
    workers: list[StoreEvent] = []
    for number in range(WORKERS):
        devices = tuple(a_device(f"GPU-{number}-{index}", index=index) for index in range(DEVICES))
        readings = tuple(Telemetry(device_id=device.id, utilization=0.5, power_w=300.0) for device in devices)
        workers.append(WorkerSeen(a_worker(f"worker-{number}", devices=devices), readings))
    store.record(workers, now)
    busy = [(number, index) for number in range(WORKERS) for index in range(DEVICES - 1)]
    held = [a_pending(f"held-{number}-{index}", task_id=f"held-{number}-{index}") for number, index in busy]
    waiting = [a_pending(f"waits{number}", "a100:8", at_s=number) for number in range(WAITING)]
    store.record([RequestSubmitted(request) for request in (*held, *waiting)], now)
    places = tuple(
        a_place(f"held-{number}-{index}", f"worker-{number}", **{f"GPU-{number}-{index}": 1000})
        for number, index in busy
    )
    reason = Reason(ReasonCode.BUSY, "8 × a100", "1 of 8 free")
    account = Account("priority", "waits for a free worker")
    waits = tuple(Wait(request.id, position, reason, account) for position, request in enumerate(waiting, 1))
    store.commit(Plan((*places, *waits)), now, now + timedelta(days=1))


def cpu_ms(function: Callable[[], object]) -> float:
    """Milliseconds of computing."""
    began = time.process_time()
    function()
    return 1000 * (time.process_time() - began)


def main() -> None:
    """Print one line for each view."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    airflow.api_fastapi.app._AuthManagerState.instance = SimpleAuthManager()
    SimpleAuthManager.get_authorized_dag_ids = lambda self, **_: {"dag"}  # type: ignore[method-assign]
    DagModel.get_team_name = lambda dag_id, **_: None  # type: ignore[method-assign]
    DagEdges.refresh = lambda self, dag_ids: {}  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'store.db'}")
        tables.metadata.create_all(engine)
        fill(SqlStore(engine))
        app = FastAPI()
        app.include_router(PageRoutes(FleetReader(lambda: engine)).router())
        app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role="admin")
        with TestClient(app, base_url="http://test/page/") as client:
            client.get("placement/dag", params=TASK | {"task_id": "waits0"})  # the first snapshot of the process
            print(f"{'view':10} {'first ms':>9} {'poll ms':>8} {'first kB':>9} {'poll bytes':>10}")
            for name, (path, parameters) in VIEWS.items():
                measure(client, name, path, parameters)


def measure(client: TestClient, name: str, path: str, parameters: dict[str, object]) -> None:
    """Print the costs of one view."""
    answers: list[Any] = []
    first_ms = cpu_ms(lambda: answers.append(client.get(path, params=parameters)))
    quiet: list[tuple[float, Any]] = []
    while len(quiet) < POLLS:
        etag = {"If-None-Match": answers[-1].headers["ETag"]}
        poll_ms = cpu_ms(lambda etag=etag: answers.append(client.get(path, params=parameters, headers=etag)))
        if answers[-1].status_code == HTTPStatus.NOT_MODIFIED:
            quiet.append((poll_ms, answers[-1]))
    headers = sum(len(key) + len(value) + 4 for key, value in quiet[0][1].headers.items())
    size = len(answers[0].content) / 1000
    median_ms = statistics.median(milliseconds for milliseconds, _ in quiet)
    print(f"{name:10} {first_ms:9.0f} {median_ms:8.1f} {size:9.1f} {headers:10}", flush=True)


if __name__ == "__main__":
    main()
