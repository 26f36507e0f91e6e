"""A real agent and a real server that goes away and comes back."""

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_airflow.agent import agent as agent_module
from hetero_airflow.agent.agent import Agent
from hetero_airflow.agent.connection import RefusedByServer, ServerConnection, ServerUnreachable
from hetero_airflow.agent.error_watch import ErrorWatch
from hetero_airflow.agent.protocol import Heartbeat, InventoryReport, RefusalCode
from hetero_airflow.agent.startup import StopSignals, key_path, open_connection
from hetero_airflow.agent.tokens import hash_secret
from hetero_airflow.discovery.health.xid_watch import XidEvent
from hetero_airflow.engines.host.held_devices import LocalRunDevices
from hetero_airflow.engines.host.lease_files import CurrentLeases, UncheckedLeases
from hetero_airflow.errors import IdentityError
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import Inventory, WorkerState
from hetero_airflow.store.sql.join_tokens import JoinToken, JoinTokens
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import RequestSubmitted
from hetero_airflow.testing import a_pending, a_place, a_worker, move_lease
from tests.api_server import SECRET
from tests.waiting import eventually

WORKER = a_worker(engine="celery")
HOUR = timedelta(hours=1)


@pytest.fixture
def enrolment(engine) -> WorkerKeys:
    """A secret for worker-a."""
    keys, now = WorkerKeys(engine), datetime.now(UTC)
    keys.open_enrolment("worker-a", hash_secret(SECRET), now + HOUR, now)
    return keys


def never(_seconds: float) -> bool:
    return False


def link_to(url: str, home: Path, secret: str = SECRET, pause: Callable[[float], bool] = never) -> ServerConnection:
    link = open_connection(url, "worker-a", key_path(home, "worker-a"), secret, pause=pause, rng=random.Random(1))
    assert link is not None
    return link


class NoLeases:
    """Stands in for a host without tasks."""

    unchecked = UncheckedLeases()
    local_runs = LocalRunDevices()
    has_files = False

    def live_leases(self) -> frozenset[str]:
        return frozenset()

    def current(self) -> CurrentLeases:
        return CurrentLeases(frozenset(), {}, frozenset())

    def note_unknown(self, leases) -> bool:
        assert not leases
        return False

    def end(self, leases) -> None:
        assert not leases


class DiscoveryQueue:
    """Stands in for discovery."""

    def __init__(self) -> None:
        self.next: list[Inventory] = [Inventory(worker=WORKER)]
        self.xids: list[XidEvent] = []

    looked_at = 0.0

    def poll(self) -> Inventory | None:
        return self.next.pop() if self.next else None


@pytest.fixture
def running(server, enrolment, tmp_path, monkeypatch):
    """An agent in a thread with a heartbeat every 50 ms, and the signals that stop it."""
    monkeypatch.setattr(agent_module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(agent_module, "MAX_RETRY_WAIT_S", 0.1)
    signals, discovery = StopSignals(), DiscoveryQueue()
    link = link_to(server.url, tmp_path)
    xids = SimpleNamespace(poll=lambda: [discovery.xids.pop() for _ in list(discovery.xids)])
    ports = (discovery, NoLeases(), ErrorWatch(xids), link)
    made = Agent("worker-a", "celery", *ports, pause=signals.pause, rng=random.Random(1))
    thread = threading.Thread(target=made.run)
    thread.start()
    yield discovery, signals, thread
    for _ in range(100):
        signals._receive(15, None)
        thread.join(0.1)
        if not thread.is_alive():
            break
    link.close()


def test_an_agent_enrols_once_and_goes_on_with_its_key(server, enrolment, tmp_path):
    first = link_to(server.url, tmp_path)
    assert first.send_inventory(InventoryReport(worker=WORKER)).inventory
    for secret in (SECRET, "", "another".ljust(43, "-")):
        again = link_to(server.url, tmp_path, secret)
        assert again.send_inventory(InventoryReport(worker=WORKER)).inventory
        again.close()
    first.close()


def test_agents_of_any_number_of_workers_join_with_one_token(server, engine, tmp_path):
    now = datetime.now(UTC)
    JoinTokens(engine).create(JoinToken("join-1", "worker-*", 2, now + HOUR, now, None), hash_secret(SECRET))
    for name in ("worker-a", "worker-b", "worker-a"):
        path = key_path(tmp_path, name)
        link = open_connection(server.url, name, path, SECRET, pause=never, rng=random.Random(1))
        assert link is not None
        assert link.send_inventory(InventoryReport(worker=a_worker(name, engine="celery"))).inventory
        link.close()
    for name, problem in (("worker-c", "as many workers as it may \\(2\\)"), ("other", "a token for worker-")):
        path = key_path(tmp_path, name)
        with pytest.raises(RefusedByServer, match=problem):
            open_connection(server.url, name, path, SECRET, pause=never, rng=random.Random(1))


def test_an_agent_without_key_and_secret_says_what_to_do(server, tmp_path):
    with pytest.raises(IdentityError, match=r"no key in .* and no secret in HETERO_AIRFLOW_ENROLMENT\. Run `airflow"):
        link_to(server.url, tmp_path, "")
    assert not (tmp_path / "hetero").exists()


def test_a_secret_that_is_refused_ends_a_new_agent(server, tmp_path):
    with pytest.raises(RefusedByServer, match="a secret that enrols no worker"):
        link_to(server.url, tmp_path)


def test_enrolling_waits_for_a_server_that_is_away(server, enrolment, tmp_path):
    server.stop()
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.start()
        return False

    link_to(server.url, tmp_path, pause=pause).close()
    assert len(pauses) == 3
    server.stop()
    assert (
        open_connection(server.url, "worker-b", tmp_path / "b.pem", SECRET, pause=lambda _: True, rng=random.Random(1))
        is None
    )


def test_what_is_no_api_server_of_ours_is_reported(server, tmp_path, enrolment):
    link = link_to(server.url, tmp_path)
    link.close()
    wrong = link_to(f"{server.url}/elsewhere", tmp_path, "")
    with pytest.raises(RefusedByServer, match=r"HTTP 404.* Give the address of Airflow's API server") as caught:
        wrong.send_heartbeat(Heartbeat(worker="worker-a"))
    assert caught.value.code is None
    wrong.close()
    for url in ("http://127.0.0.1:1", "http://name.invalid", "ftp://x", "rubbish"):
        wrong = link_to(url, tmp_path, "")
        with pytest.raises(ServerUnreachable):
            wrong.send_heartbeat(Heartbeat(worker="worker-a"))
        wrong.close()


def test_a_revoked_agent_is_reported_so(server, enrolment, tmp_path):
    link = link_to(server.url, tmp_path)
    enrolment.revoke("worker-a", datetime.now(UTC))
    with pytest.raises(RefusedByServer) as caught:
        link.send_heartbeat(Heartbeat(worker="worker-a"))
    assert caught.value.code is RefusalCode.UNKNOWN_KEY
    link.close()


def test_a_worker_is_there_within_a_heartbeat_and_its_changes_too(running, store):
    discovery, _, _ = running
    eventually(lambda: store.snapshot().workers == (WORKER,))
    changed = WORKER.model_copy(update={"labels": {"zone": "b"}})
    discovery.next.append(Inventory(worker=changed))
    eventually(lambda: store.snapshot().workers == (changed,))


def test_a_gpu_that_falls_off_the_bus_is_out_within_a_heartbeat_until_a_scheduler_lets_it_back_in(running, store):
    discovery, _, _ = running
    eventually(lambda: store.snapshot().workers == (WORKER,))
    discovery.xids.append(XidEvent(uuid="GPU-1", xid=79, at=datetime.now(UTC)))
    eventually(lambda: store.snapshot().holds)
    assert [device.id for device in store.snapshot().workers[0].devices if device.leasable] == ["cpu", "GPU-0"]
    scheduler = HealthWatch(store, HostHealth("another host"))
    scheduler.step(datetime.now(UTC))
    assert store.snapshot().holds
    for minutes in (1, 2):
        scheduler.step(datetime.now(UTC) + timedelta(minutes=minutes))
    assert store.snapshot().workers == (WORKER,)
    assert store.health()["worker-a", "GPU-1"].strikes == 1


def test_an_api_server_that_is_restarted_loses_nothing(running, server, store):
    """Repeatedly, at any moment of the agent's work; leases and the worker stay as they are."""
    eventually(lambda: store.snapshot().workers == (WORKER,))
    now = datetime.now(UTC)
    store.record([RequestSubmitted(a_pending("r1"))], now)
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), now, now + HOUR).leases
    before = store.snapshot()
    for _ in range(5):
        server.stop()
        time.sleep(0.05)
        server.start()
        at = datetime.now(UTC)
        eventually(lambda at=at: store.last_seen()["worker-a"] > at)
    assert store.snapshot() is before
    assert store.snapshot().leases == (lease,)


def test_sigterm_takes_no_new_task_waits_for_the_last_one_and_leaves(running, store):
    _, signals, thread = running
    eventually(lambda: store.snapshot().workers)
    now = datetime.now(UTC)
    store.record([RequestSubmitted(a_pending("r1")), RequestSubmitted(a_pending("r2"))], now)
    (lease,) = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), now, now + HOUR).leases
    signals._receive(15, None)
    eventually(lambda: store.snapshot().holds)
    assert store.commit(Plan((a_place("r2", **{"GPU-1": 1000}),)), now, now + HOUR).raced == ("r2",)
    at = datetime.now(UTC)
    eventually(lambda: store.last_seen()["worker-a"] > at)
    assert (thread.is_alive(), store.snapshot().workers[0].state) == (True, WorkerState.ONLINE)
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, now)
    thread.join(600)
    assert (thread.is_alive(), store.snapshot().workers[0].state) == (False, WorkerState.LOST)
