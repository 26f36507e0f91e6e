"""The routes for users, and the KEDA examples of docs/autoscaling.md.

Of these, the query runs on a real PostgreSQL, and the route and the field are the real ones.
"""

import json
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow.api_fastapi.app
import pytest
import yaml
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.testclient import TestClient
from kubernetes_validate import validate
from sqlalchemy import NullPool, create_engine, text

from hetero_airflow.agent.protocol import PREFIX
from hetero_airflow.agent.startup import key_path
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.scheduling.advice.wanted_workers import WantedType
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from hetero_airflow.web.fleet_reader import FleetReader
from hetero_airflow.web.user_routes import MoreWorkers, UserRoutes
from tests.kubernetes_bodies import VERSION

SMALL, LARGE = "2x-nvidia-a100-sxm4-40gb", "large"


def test_what_would_help_is_reported_by_type_and_of_one(engine, store):
    routes = UserRoutes(FleetReader(lambda: engine))
    hosts = (a_worker("a"), a_worker("b", labels={"hetero/type": LARGE}))
    store.record([*map(WorkerSeen, hosts), *(RequestSubmitted(a_pending(f"r{n}", "gpu:2")) for n in range(5))], EPOCH)
    all_types = (WantedType(SMALL, 3, 3), WantedType(LARGE, 0, 0))
    assert routes.wanted_workers() == MoreWorkers(workers=3, types=all_types, waiting=5, fitting=2, unservable=0)
    assert routes.wanted_workers(LARGE).workers == 0
    assert routes.wanted_workers(SMALL).types == all_types[:1]
    assert (routes.wanted_workers("no such type").workers, routes.wanted_workers("no such type").types) == (0, ())


def test_what_would_help_follows_the_queue(engine, store):
    routes = UserRoutes(FleetReader(lambda: engine))
    store.record([WorkerSeen(a_worker())], EPOCH)
    assert routes.wanted_workers().workers == 0
    store.record([RequestSubmitted(a_pending(f"r{n}", "gpu:2")) for n in range(2)], EPOCH)
    assert routes.wanted_workers().workers == 1


def test_a_reason_names_tasks_of_readable_dags_only_and_no_ids(monkeypatch, engine, store):
    readable = SimpleNamespace(get_authorized_dag_ids=lambda user: {"dag"})
    monkeypatch.setattr("hetero_airflow.web.permissions.get_auth_manager", lambda: readable)
    mine, hidden, waits = (f"01a1fa1b-42d5-78df-9288-5b4d2de1f4f{n}" for n in range(3))
    requests = [a_pending(mine, task_id="fit"), a_pending(hidden, dag_id="secret"), a_pending(waits, task_id="waits")]
    store.record([WorkerSeen(a_worker()), *map(RequestSubmitted, requests)], EPOCH)
    reason = Reason(ReasonCode.RESERVED, "1 × gpu", f"{mine} and {hidden} ahead in the queue")
    store.commit(Plan((Wait(waits, 3, reason, Account("priority", "waits")),)), EPOCH, EPOCH + timedelta(hours=1))
    page = UserRoutes(FleetReader(lambda: engine)).queue(user=None)
    expected = "reserved: asked 1 × gpu, found dag.fit (run) and a task of another DAG ahead in the queue"
    assert [(row.task_id, row.reason) for row in page.waiting] == [("waits", expected), ("fit", "")]


@pytest.mark.parametrize("path", ["/workers", "/devices", "/queue", "/wanted-workers"])
def test_a_user_with_a_role_that_airflow_does_not_know_is_refused(monkeypatch, engine, path):
    manager = SimpleAuthManager()
    monkeypatch.setattr(airflow.api_fastapi.app._AuthManagerState, "instance", manager)
    app = FastAPI()
    app.include_router(UserRoutes(FleetReader(lambda: engine)).router())
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="outsider", role="none")
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get(path)
    assert answer.status_code == 403
    assert "a role that the auth manager does not know: 'NONE'. Give this user" in answer.json()["detail"]


PAGE = (Path(__file__).parents[2] / "docs" / "autoscaling.md").read_text()


def manifests() -> list[dict[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def scaler(type_: str) -> dict[str, Any]:
    """The metadata of the page's trigger of this type."""
    specs = [document["spec"] for document in manifests()]
    triggers = [trigger for spec in specs for trigger in spec.get("triggers", ())]
    (metadata,) = [trigger["metadata"] for trigger in triggers if trigger["type"] == type_]
    return metadata


def test_the_pool_is_one_that_the_query_scales_and_that_is_enrolled_by_its_names():
    (pool,) = [manifest for manifest in manifests() if manifest["kind"] == "StatefulSet"]
    validate(pool, VERSION, strict=True)
    name, spec = pool["metadata"]["name"], pool["spec"]["template"]["spec"]
    (target,) = [manifest["spec"]["scaleTargetRef"] for manifest in manifests() if manifest["kind"] == "ScaledObject"]
    assert target == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}
    assert f'enroll "{name}-$n"' in PAGE
    assert f"create secret generic {spec['volumes'][0]['secret']['secretName']} " in PAGE
    mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert str(key_path(Path("/opt/airflow"), f"{name}-0").parent) in mounts


@pytest.mark.postgres
def test_the_query_counts_the_gpus_that_are_asked_for(make_postgres_database):
    engine = create_engine(make_postgres_database(), poolclass=NullPool)
    tables.metadata.create_all(engine)
    store = SqlStore(engine)

    def answer() -> float:
        with engine.connect() as connection:
            return float(connection.execute(text(scaler("postgresql")["query"])).scalar_one())

    assert answer() == 0
    half = {"device": "gpu", "share": 0.5}
    devices = ["gpu", "gpu:4", "a100-80gb:2", ["gpu:8", "cpu:2"], half, "cpu:8", "npu"]
    requests = [RequestSubmitted(a_pending(f"r{n}", device)) for n, device in enumerate(devices)]
    store.record([WorkerSeen(a_worker()), *requests], EPOCH)
    assert answer() == 1 + 4 + 2 + 8 + 0.5
    store.commit(Plan((a_place("r0", **{"GPU-0": 1000}),)), EPOCH, EPOCH)
    store.record([RequestWithdrawn("r3", "cleared")], EPOCH)
    assert answer() == 1 + 4 + 2 + 0.5


def test_the_route_and_its_field_are_there():
    url, _, query = scaler("metrics-api")["url"].partition("?")
    routes = UserRoutes(FleetReader(lambda: pytest.fail("nothing is asked"))).router().routes
    assert url.removeprefix("http://airflow-api-server:8080") in {PREFIX + route.path for route in routes}
    assert query.startswith("type=")
    assert scaler("metrics-api")["valueLocation"] in MoreWorkers.model_fields


def test_the_answer_in_the_page_is_one():
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert MoreWorkers.model_validate(json.loads(shown)).model_dump(mode="json") == json.loads(shown)
