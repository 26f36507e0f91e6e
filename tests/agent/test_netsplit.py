"""The network between agent and API server breaks in either direction. Each runs in its own network namespace."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, create_engine, event

from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.engines.host.lease_files import process_identity
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.reaper import lost_workers
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import RequestSubmitted
from hetero_airflow.testing import a_pending, a_place, move_lease
from tests.api_server import SECRET
from tests.waiting import eventually

pytestmark = pytest.mark.system
AGENT, SERVER = "10.213.77.1", "10.213.77.2"
PORT = 8080

SERVE = """
import sys
import uvicorn
from fastapi import FastAPI
from sqlalchemy import create_engine
from hetero_airflow.web import app as app_module
app_module.SERVER_HEARTBEAT_S = 0.1
app = FastAPI(openapi_url=None)
ours = app_module.make_app(lambda: engine)
app.router.lifespan_context = lambda _: ours.router.lifespan_context(ours)
app.mount("/hetero", ours)
engine = create_engine(sys.argv[1])
uvicorn.run(app, host=sys.argv[2], port=int(sys.argv[3]), log_level="error")
"""

TELL = """
import random
import sys
from pathlib import Path
from hetero_airflow.agent import agent, connection, error_watch, lease_watch
from hetero_airflow.agent.startup import StopSignals, open_connection
from hetero_airflow.model.worker import Inventory
from hetero_airflow.testing import a_worker
agent.HEARTBEAT_S, agent.MAX_RETRY_WAIT_S, connection.TIMEOUT_S = 0.1, 0.5, 0.5

class OneInventory:
    inventories = [Inventory(worker=a_worker(engine="celery"))]
    looked_at = 0.0
    def poll(self):
        return self.inventories.pop() if self.inventories else None

pause, rng = StopSignals().pause, random.Random(1)
opened = open_connection(sys.argv[1], "worker-a", Path(sys.argv[2]), sys.argv[3], pause=pause, rng=rng)
ports = (OneInventory(), lease_watch.LeaseWatch("worker-a"), error_watch.ErrorWatch(), opened)
agent.Agent("worker-a", "celery", *ports, pause=pause, rng=rng).run()
"""

TASK = """
import ctypes, os, signal, sys, time
from hetero_airflow.engines.host.lease_files import recorded_lease
with recorded_lease(sys.argv[1], "worker-a") as note:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test ends its supervisor
        time.sleep(600)
    note.begin(pid)
    os.write(1, b"%d\\n" % pid)
    os.waitpid(pid, 0)
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def networks() -> Iterator[tuple[str, str]]:
    """Two connected network namespaces: the agent's and the server's."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, to make network namespaces")
    names = (f"hetero-a-{os.getpid()}", f"hetero-s-{os.getpid()}")
    with ExitStack() as stack:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
                pytest.skip("this host does not allow network namespaces")
            stack.callback(ip, "netns", "del", name)
        ip("link", "add", "hetero0", "netns", names[0], "type", "veth", "peer", "name", "hetero0", "netns", names[1])
        for name, address in zip(names, (AGENT, SERVER), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "hetero0")
            ip("-n", name, "link", "set", "hetero0", "up")
        yield names


@pytest.fixture
def engine(tmp_path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/store.db", poolclass=NullPool)
    event.listen(made, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=WAL"))
    tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def store(engine) -> SqlStore:
    return SqlStore(engine)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a Python program, in a network namespace if its name is given."""
    with ExitStack() as stack:

        def run(code: str, *arguments: str, network: str = "") -> subprocess.Popen[bytes]:
            inside = ["ip", "netns", "exec", network] if network else []
            environment = {**os.environ, "TMPDIR": str(tmp_path)}
            command = [*inside, sys.executable, "-W", "ignore", "-c", code, *arguments]
            process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture
def joined(networks, engine, store, start, tmp_path) -> None:
    """An API server and an agent whose heartbeats arrive."""
    now = datetime.now(UTC)
    WorkerKeys(engine).open_enrolment("worker-a", hash_secret(SECRET), now + timedelta(hours=1), now)
    start(SERVE, str(engine.url), SERVER, str(PORT), network=networks[1])
    start(TELL, f"http://{SERVER}:{PORT}", str(tmp_path / "agent.pem"), SECRET, network=networks[0])
    eventually(lambda: store.heartbeats())


def a_running_task(store: SqlStore, start) -> tuple[Lease, int]:
    """A lease and its process, which does not need the network."""
    now = datetime.now(UTC)
    store.record([RequestSubmitted(a_pending("r1"))], now)
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), now, now + timedelta(hours=1)).leases
    pid = int(start(TASK, lease.id).stdout.readline())
    eventually(lambda: store.heartbeats()["worker-a"].leases == {lease.id})
    return lease, pid


class Cut:
    """Block all traffic in one direction until `heal`."""

    def __init__(self, networks: tuple[str, str], direction: str) -> None:
        name, there = (networks[0], SERVER) if direction == "nothing leaves the agent" else (networks[1], AGENT)
        self._route = ("-n", name, "route"), ("blackhole", f"{there}/32")
        self._do("add")

    def heal(self) -> None:
        self._do("del")

    def _do(self, what: str) -> None:
        command, route = self._route
        ip(*command, what, *route)


@pytest.fixture(params=["nothing leaves the agent", "nothing leaves the server"])
def cut(request, networks) -> Iterator[Callable[[], Cut]]:
    made: list[Cut] = []

    def begin() -> Cut:
        made.append(Cut(networks, request.param))
        return made[-1]

    yield begin
    for cut_made in made:
        with suppress(subprocess.CalledProcessError):
            cut_made.heal()


def test_a_short_split_harms_no_task(joined, store, start, cut):
    lease, pid = a_running_task(store, start)
    before = store.snapshot()
    split = cut()
    time.sleep(2)
    broken = datetime.now(UTC)
    assert store.last_seen()["worker-a"] < broken - timedelta(seconds=0.5)
    split.heal()
    eventually(lambda: store.last_seen()["worker-a"] > broken)
    assert store.heartbeats()["worker-a"].leases == {lease.id}
    assert process_identity(pid) is not None
    assert store.snapshot() is before


def test_after_a_long_split_the_worker_is_back_once_what_was_taken_back_has_ended(joined, store, start, cut):
    lease, pid = a_running_task(store, start)
    split = cut()

    def lost():
        workers, seen, agents = store.snapshot().workers, store.last_seen(), store.heartbeats()
        return lost_workers(workers, seen, agents, store.server_heartbeat(), datetime.now(UTC), 1)

    eventually(lost)
    store.record(lost(), datetime.now(UTC))
    move_lease(store, lease.id, lease.token, LeaseState.EVICTED, datetime.now(UTC))
    assert process_identity(pid) is not None, "the agent of a host that is cut off ends nothing by itself"
    split.heal()
    was_there = []

    def is_back() -> bool:
        online = store.snapshot().workers[0].state is WorkerState.ONLINE
        was_there.append(process_identity(pid) is not None)
        assert not (online and was_there[-1]), "its device would be leased twice"
        return online

    eventually(is_back)
    assert was_there[0]


def test_an_api_server_that_is_away_takes_no_worker_with_it(networks, engine, store, start, tmp_path):
    now = datetime.now(UTC)
    WorkerKeys(engine).open_enrolment("worker-a", hash_secret(SECRET), now + timedelta(hours=1), now)
    server = start(SERVE, str(engine.url), SERVER, str(PORT), network=networks[1])
    start(TELL, f"http://{SERVER}:{PORT}", str(Path(tmp_path, "agent.pem")), SECRET, network=networks[0])
    eventually(lambda: store.heartbeats())
    server.kill()
    server.wait()
    for seconds in (1, 60, 86400):
        late = datetime.now(UTC) + timedelta(seconds=seconds)
        state = store.snapshot().workers, store.last_seen(), store.heartbeats(), store.server_heartbeat(), late, 15
        assert lost_workers(*state) == ()
    away = datetime.now(UTC)
    start(SERVE, str(engine.url), SERVER, str(PORT), network=networks[1])
    eventually(lambda: store.last_seen()["worker-a"] > away)
    assert store.server_heartbeat().since > away
