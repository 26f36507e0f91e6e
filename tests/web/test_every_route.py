"""Every route of the app in Airflow's real API server: none answers an unknown client or shows another team's data."""

import json
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, product, repeat
from pathlib import Path

import httpx
import psutil
import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team
from fastapi.routing import APIRoute
from local_airflow import PATIENCE_S, USER, LocalAirflow
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from hetero_airflow.agent.protocol import ENROLMENT_VARIABLE, HEARTBEAT_PATH, INVENTORY_PATH, PREFIX
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.api_server import Speaker, make_app

pytestmark = pytest.mark.system
METRICS = "/metrics"
METRICS_TOKEN = secrets.token_hex(16)
AGENTS = frozenset({"/agent/enrolment", INVENTORY_PATH, HEARTBEAT_PATH})
FILES = frozenset({"/page/hetero.js", "/page/devices.svg"})
"""For every user who is logged in: they are the same in every installation."""
DRAINS = frozenset({"/page/drain", "/page/undrain"})
PROFILE = "/page/profile/{dag_id}"
"""The task of these tests has none: who may read it gets 404."""
TASKS = frozenset({"/page/placement/{dag_id}", "/page/forecast/{dag_id}", PROFILE})
FLEET = frozenset(
    f"/page/{view}" for view in ("summary", "map", "devices", "queue", "timeline", "usage", "worker", "openapi.json")
)
QUERIES = {"/page/worker": {"id": "worker-a"}, **{path: {"run_id": "run", "task_id": "task"} for path in TASKS}}
"""What a route needs to be asked."""
TEAMS = ("red", "blue")
USERS = f"{USER}:admin,nobody:,outsider:none,reader:viewer:red"
"""Airflow's SimpleAuthManager takes ``name:role:team``; a user without a role may only log in. It has no role none."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def routes() -> list[tuple[str, str]]:
    """(method, path) of every route that the app has, whatever added it."""
    app = make_app(lambda: pytest.fail("no route is called here"))
    methods_and_paths = [(method, route.path) for route in app.routes for method in sorted(route.methods)]
    assert all(isinstance(route, APIRoute) for route in app.routes), "a mount or a websocket: walk it too"
    return methods_and_paths


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    """Airflow's API server alone, with users of different permissions."""
    settings = {
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
        "AIRFLOW__HETERO__METRICS_TOKEN": METRICS_TOKEN,
    }
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    simulated = "nvidia/h100-80gb:2"
    made = LocalAirflow(home, dags, components=["api-server"], simulated=simulated, settings=settings)
    home.mkdir(exist_ok=True)
    made.migrate()
    add_teams(made.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with made:
        yield made


def add_teams(database: str) -> None:
    """One DAG of each team; Airflow only starts if it knows the teams of its users."""
    with Session(create_engine(database, poolclass=NullPool)) as session:
        bundles = [DagBundleModel(name=f"of-{team}") for team in TEAMS]
        for team, bundle in zip(TEAMS, bundles, strict=True):
            bundle.teams.append(Team(name=team))
        session.add_all(bundles)
        session.flush()
        session.add_all(DagModel(dag_id=f"dag-{team}", bundle_name=f"of-{team}") for team in TEAMS)
        session.commit()


@pytest.fixture(scope="module")
def engine(airflow: LocalAirflow) -> Iterator[Engine]:
    made = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def tokens(airflow: LocalAirflow) -> dict[str, str]:
    """User name → client, for every user."""
    passwords = json.loads((airflow.home / "passwords.json").read_text())
    logins = [{"username": name, "password": password} for name, password in passwords.items()]
    answers = [httpx.post(f"{airflow.url}/auth/token", json=login, timeout=30) for login in logins]
    return {name: answer.json()["access_token"] for name, answer in zip(passwords, answers, strict=True)}


@pytest.fixture(scope="module")
def user_token(tokens: dict[str, str]) -> str:
    return tokens[USER]


@pytest.fixture(scope="module")
def speaker(airflow: LocalAirflow, engine: Engine) -> Iterator[Speaker]:
    made = Speaker(airflow.url).enrolled(engine)
    yield made
    made.http.close()


def ask(airflow: LocalAirflow, method: str, path: str, token: str | None = None, **kwargs) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    kwargs = {"params": QUERIES.get(path)} | kwargs
    url = f"{airflow.url}{PREFIX}{path}".replace("{dag_id}", "dag-red")
    return httpx.request(method, url, headers=headers, timeout=30, **kwargs)


def test_the_app_has_the_routes_that_are_walked():
    assert {path for _, path in routes()} == {
        *AGENTS, *FILES, *DRAINS, *TASKS, *FLEET, METRICS, "/workers", "/devices", "/queue", "/wanted-workers",
    }  # fmt: skip


@pytest.mark.parametrize(("method", "path"), routes())
def test_no_route_answers_a_stranger(airflow, method, path):
    guess = f"Bearer {secrets.token_urlsafe(32)}"  # of the length of an enrolment secret
    for header in ({}, *({"Authorization": text} for text in ("Bearer", "Bearer x", "Basic YTpi", guess))):
        for cookies in ({}, {"_token": "rubbish"}):
            with httpx.Client(cookies=cookies, headers=header, timeout=30) as client:
                answer = client.request(method, f"{airflow.url}{PREFIX}{path}", content=b"{}")
                assert answer.status_code in (401, 403), answer.text


@pytest.mark.parametrize(("method", "path"), [route for route in routes() if route[1] in {*AGENTS, METRICS}])
def test_no_user_speaks_for_a_worker(airflow, user_token, method, path):
    assert ask(airflow, method, path, user_token, content=b"{}").status_code in (401, 403)
    with httpx.Client(cookies={"_token": user_token}, timeout=30) as client:
        assert client.request(method, f"{airflow.url}{PREFIX}{path}", content=b"{}").status_code == 401


@pytest.mark.parametrize(
    ("method", "path"), [route for route in routes() if route[1] not in {*AGENTS, *FILES, *DRAINS, METRICS}]
)
def test_whoever_may_not_see_airflows_jobs_reads_nothing(airflow, tokens, speaker, method, path):
    speaker.report()
    for name in ("nobody", "outsider"):
        assert ask(airflow, method, path, tokens[name]).status_code == 403
        with httpx.Client(cookies={"_token": tokens[name]}, timeout=30) as client:
            url = f"{airflow.url}{PREFIX}{path}".replace("{dag_id}", "dag-red")
            assert client.request(method, url, params=QUERIES.get(path)).status_code == 403
    answer = ask(airflow, method, path, tokens["reader"])
    assert answer.status_code == (404 if path == PROFILE else 200), f"who may see them is to read it: {answer.text}"


@pytest.mark.parametrize("path", sorted(DRAINS))
def test_whoever_may_not_edit_pools_drains_nothing(airflow, tokens, engine, path):
    for name in ("nobody", "outsider", "reader"):
        assert ask(airflow, "POST", path, tokens[name], json={"target": "worker-q"}).status_code == 403
    assert SqlStore(engine).snapshot().holds == ()


@pytest.mark.parametrize("path", sorted(TASKS))
def test_nobody_reads_about_tasks_of_another_teams_dag(airflow, tokens, path):
    foreign = path.replace("{dag_id}", "dag-blue")
    assert ask(airflow, "GET", foreign, tokens["reader"], params=QUERIES[path]).status_code == 403
    answer = ask(airflow, "GET", foreign, tokens[USER], params=QUERIES[path])
    assert answer.status_code == (404 if path == PROFILE else 200)


@pytest.mark.parametrize("path", sorted(FILES))
def test_the_built_page_is_for_users_who_are_logged_in(airflow, tokens, path):
    answer = ask(airflow, "GET", path, tokens["reader"])
    assert (answer.status_code, "immutable" in answer.headers["Cache-Control"]) == (200, True)


@pytest.mark.parametrize(("method", "path"), [route for route in routes() if route[1] not in AGENTS])
def test_no_worker_reads_what_is_for_people(airflow, speaker, method, path):
    for digest_path in (path, HEARTBEAT_PATH):
        answer = ask(airflow, method, path, speaker.token(method, digest_path, b""))
        assert answer.status_code in (401, 403)


PART = b"x" * 65_536
PARTS = 1500
"""Of 65,536 bytes: nearly 100 MB."""
LOGINS = ("", f"Authorization: Bearer {secrets.token_urlsafe(32)}\r\n", "Cookie: _token=rubbish\r\n")


@cache
def gzip_bomb() -> bytes:
    return zlib.compress(bytes(len(PART) * PARTS), wbits=31)


def endless_bodies() -> Iterator[tuple[str, Iterator[bytes]]]:
    """(headers, parts) of bodies that are large, without a declared end, slow, and large once unpacked.

    None is sent to its end, so an answer comes before it.
    """
    bomb = gzip_bomb()
    yield f"Content-Length: {len(PART) * PARTS}", repeat(PART, PARTS - 1)
    yield "Transfer-Encoding: chunked", repeat(b"%x\r\n%b\r\n" % (len(PART), PART), PARTS)
    yield "Content-Length: 10000", (time.sleep(0.005) or b"x" for _ in range(1000))
    yield f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}", iter([bomb[:-1]])


def send_until_answered(airflow: LocalAirflow, head: str, parts: Iterator[bytes]) -> tuple[int, bool]:
    """The status of the answer, 0 if none came; and whether the server then closed the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", airflow.port), timeout=30) as connection:
        with suppress(ConnectionError):  # it is closed while we send; the answer can be read nevertheless
            for part in chain([head.encode()], parts):
                connection.sendall(part)
                if select.select([connection], [], [], 0)[0]:
                    break
        try:
            while received := connection.recv(65_536):
                answer += received
        except ConnectionError:
            pass
        except TimeoutError:
            return int((answer.split() or [b"", 0])[1]), False
    return int((answer.split() or [b"", 0])[1]), True


def peak_bytes(processes: list[psutil.Process], *, reset: bool = False) -> int:
    """The greatest memory of the processes since the last reset (man 5 proc)."""
    peak = 0
    for process in processes:
        folder = Path("/proc", str(process.pid))
        peak += int(re.search(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())[1]) * 1024
        if reset:
            (folder / "clear_refs").write_text("5")
    return peak


def test_no_body_is_read_before_its_sender_is_known(airflow):
    """Neither of who has no login nor of who has a wrong one, and the server needs no memory for it."""
    main = psutil.Process(airflow.pid("api-server"))
    processes = [main, *main.children(recursive=True)]
    wrong = []
    for method, path in routes():
        ask(airflow, method, path, content=b"{}")  # what the first request costs, counts for nobody
    peak_bytes(processes, reset=True)
    before = sum(process.memory_info().rss for process in processes)
    for (method, path), login in product(routes(), LOGINS):
        for headers, parts in endless_bodies():
            line = f"{method} {PREFIX}{path} HTTP/1.1".replace("{dag_id}", "dag-red")
            head = f"{line}\r\nHost: a\r\nContent-Type: application/json\r\n{login}{headers}\r\n\r\n"
            status, is_closed = send_until_answered(airflow, head, parts)
            if status not in (401, 403) or not is_closed:
                wrong.append((method, path, login, headers, status, is_closed))
    grown = peak_bytes(processes) - before
    print(f"The memory of the API server grew by {grown / 1e6:.1f} MB at most.")
    assert (wrong, grown < 10_000_000) == ([], True), grown


NOTHING = ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect", "/", "/agent", "/nothing")


@pytest.mark.parametrize("path", NOTHING)
def test_there_is_nothing_else(airflow, user_token, path):
    """Other paths below the prefix are not found, for every user and method."""
    for method in METHODS:
        for token in (None, user_token):
            assert ask(airflow, method, path, token).status_code in (404, 405)


def test_no_worker_and_no_secret_of_ours_opens_airflows_own_api(airflow, speaker):
    for path in ("/api/v2/dags", "/ui/config", "/execution/health-is-public-but-this-is-not"):
        token = speaker.token("GET", path, b"")
        answer = httpx.get(f"{airflow.url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=30)
        assert answer.status_code in (401, 403, 404)


def test_an_agent_is_heard_through_airflows_own_server(airflow, speaker, engine):
    answer = speaker.report()
    assert answer.status_code == 200, answer.text
    assert speaker.beat(telemetry=(Telemetry(device_id="GPU-0", power_w=70),)).json() == answer.json()
    assert SqlStore(engine).snapshot().workers == (speaker.worker(),)


def test_people_see_workers_devices_and_the_queue(airflow, user_token, speaker, engine):
    speaker.report()
    speaker.beat(telemetry=(Telemetry(device_id="GPU-0", power_w=70),))
    (worker,) = ask(airflow, "GET", "/workers", user_token).json()["workers"]
    assert {name: worker[name] for name in ("id", "engine", "state", "devices", "leasable", "holds")} == {
        "id": "worker-a", "engine": "celery", "state": "online", "devices": 3, "leasable": 3, "holds": [],
    }  # fmt: skip
    assert (datetime.now(UTC) - datetime.fromisoformat(worker["last_seen"])).total_seconds() < 60
    page = ask(airflow, "GET", "/devices", user_token, params={"worker": "worker-a", "offset": 1, "limit": 1}).json()
    (device,) = page["devices"]
    assert (page["total"], device["device"]["id"], device["telemetry"]["power_w"]) == (3, "GPU-0", 70)
    assert ask(airflow, "GET", "/devices", user_token, params={"limit": 10**6}).status_code == 422
    assert ask(airflow, "GET", "/queue", user_token).json() == {"waiting": [], "leases": []}


def test_prometheus_reads_the_metrics_with_their_token(airflow, speaker):
    speaker.report()
    answer = ask(airflow, "GET", METRICS, METRICS_TOKEN, params={"devices": "false"})
    assert answer.status_code == 200, answer.text
    assert 'hetero_workers{engine="celery",state="online"} 1.0' in answer.text
    assert "hetero_device_info" not in answer.text
    assert 'hetero_leases_ended_total{outcome="lost"} ' in answer.text
    assert "hetero_device_info" in ask(airflow, "GET", METRICS, METRICS_TOKEN).text
    assert ask(airflow, "GET", METRICS, METRICS_TOKEN, params={"devices": "perhaps"}).status_code == 422


def test_people_see_what_would_help(airflow, user_token):
    answer = ask(airflow, "GET", "/wanted-workers", user_token, params={"type": "no-such-type"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["workers"], answer.json()["types"]) == (0, [])


def test_of_the_queue_each_sees_the_dags_that_he_may_read(airflow, tokens, engine):
    """Airflow does not know the third DAG, so no user may read it."""
    store = SqlStore(engine)
    dags = ("dag-red", "dag-blue", "dag-unknown")
    requests = [a_pending(f"{dag}-{what}", dag_id=dag) for dag in dags for what in ("runs", "waits")]
    store.record([WorkerSeen(a_worker("worker-q")), *map(RequestSubmitted, requests)], EPOCH)
    places = [a_place(f"{dag}-runs", "worker-q", **{"GPU-0": 300}) for dag in dags]
    store.commit(Plan(tuple(places)), EPOCH, EPOCH + timedelta(minutes=1))

    def seen(name: str) -> dict[str, list[str]]:
        queue = ask(airflow, "GET", "/queue", tokens[name]).json()
        return {part: sorted(row["dag_id"] for row in rows) for part, rows in queue.items()}

    assert seen("reader") == {"waiting": ["dag-red"], "leases": ["dag-red"]}
    assert seen(USER) == {"waiting": ["dag-blue", "dag-red"], "leases": ["dag-blue", "dag-red"]}


def start_agent(airflow: LocalAirflow, name: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """An agent that can reach no database."""
    environment = {**airflow.environment, **variables, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nowhere/a.db"}
    command = [sys.executable, "-m", "airflow", "hetero", "worker", "--url", airflow.url, "--name", name, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_an_agent_from_enrolment_to_revocation(airflow, engine):
    """The last test, since the worker stays known."""
    store = SqlStore(engine)

    def node() -> Worker | None:
        return next((worker for worker in store.snapshot().workers if worker.id == "node-7"), None)

    secret = re.search(rf"{ENROLMENT_VARIABLE}=(\S{{43}}) ", airflow.run("hetero", "enroll", "node-7").stdout)[1]
    agent = start_agent(airflow, "node-7", "--labels", '{"zone": "a"}', **{ENROLMENT_VARIABLE: secret})
    worker = airflow.wait_until(node, "the worker to be known")
    assert (worker.engine, worker.labels, worker.state) == ("celery", {"zone": "a"}, "online")
    assert [device.model for device in worker.devices if device.simulated] == ["h100-80gb"] * 2
    assert "node-7" in airflow.run("hetero", "workers").stdout
    assert "a key that was enrolled at" in airflow.run("hetero", "enroll", "node-7", check=False).stderr

    agent.send_signal(signal.SIGTERM)
    output, _ = agent.communicate(timeout=PATIENCE_S)
    assert (agent.returncode, node().state) == (0, WorkerState.LOST)
    assert "Worker node-7 has left." in output
    assert secret not in output

    agent = start_agent(airflow, "node-7")
    airflow.wait_until(lambda: node().state is WorkerState.ONLINE, "the worker to be back")
    assert store.snapshot().holds == ()
    airflow.run("hetero", "revoke", "node-7")
    output, _ = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode == 1
    assert "airflow hetero enroll" in output
    assert "Traceback" not in output
