from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import airflow.api_fastapi.app
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Wait
from hetero_airflow.scheduling.advice.wanted_workers import WantedType
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_worker
from hetero_airflow.web.user_routes import MoreWorkers, UserRoutes

SMALL, LARGE = "2x-nvidia-a100-sxm4-40gb", "large"


def test_what_would_help_is_reported_by_type_and_of_one(engine, store):
    routes = UserRoutes(lambda: engine)
    hosts = (a_worker("a"), a_worker("b", labels={"hetero/type": LARGE}))
    store.record([*map(WorkerSeen, hosts), *(RequestSubmitted(a_pending(f"r{n}", "gpu:2")) for n in range(5))], EPOCH)
    all_types = (WantedType(SMALL, 3, 3), WantedType(LARGE, 0, 0))
    assert routes.wanted_workers() == MoreWorkers(workers=3, types=all_types, waiting=5, fitting=2, unservable=0)
    assert routes.wanted_workers(LARGE).workers == 0
    assert routes.wanted_workers(SMALL).types == all_types[:1]
    assert (routes.wanted_workers("no such type").workers, routes.wanted_workers("no such type").types) == (0, ())


def test_what_would_help_follows_the_queue(engine, store):
    routes = UserRoutes(lambda: engine)
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
    page = UserRoutes(lambda: engine).queue(user=None)
    expected = "reserved: asked 1 × gpu, found dag.fit (run) and a task of another DAG ahead in the queue"
    assert [(row.task_id, row.reason) for row in page.waiting] == [("waits", expected), ("fit", "")]


@pytest.mark.parametrize("path", ["/workers", "/devices", "/queue", "/wanted-workers"])
def test_a_user_with_a_role_that_airflow_does_not_know_is_refused(monkeypatch, engine, path):
    manager = SimpleAuthManager()
    monkeypatch.setattr(airflow.api_fastapi.app._AuthManagerState, "instance", manager)
    app = FastAPI()
    app.include_router(UserRoutes(lambda: engine).router())
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="outsider", role="none")
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get(path)
    assert answer.status_code == 403
    assert "a role that the auth manager does not know: 'NONE'. Give this user" in answer.json()["detail"]
