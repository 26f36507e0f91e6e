"""The KEDA examples of docs/autoscaling.md: the query on a real PostgreSQL, the real route and field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate
from sqlalchemy import NullPool, create_engine, text

from hetero_airflow.agent.protocol import PREFIX
from hetero_airflow.agent.startup import key_path
from hetero_airflow.model.plan import Plan
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from hetero_airflow.web.user_routes import MoreWorkers, UserRoutes
from tests.kubernetes_bodies import VERSION

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
    routes = UserRoutes(lambda: pytest.fail("nothing is asked")).router().routes
    assert url.removeprefix("http://airflow-api-server:8080") in {PREFIX + route.path for route in routes}
    assert query.startswith("type=")
    assert scaler("metrics-api")["valueLocation"] in MoreWorkers.model_fields


def test_the_answer_in_the_page_is_one():
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert MoreWorkers.model_validate(json.loads(shown)).model_dump(mode="json") == json.loads(shown)
