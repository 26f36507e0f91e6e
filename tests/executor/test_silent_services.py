"""Services that accept connections and never answer do not stop the executor's heartbeat."""

import subprocess
import sys
import threading

import pytest
import redis
from airflow.sdk.api.client import Client
from airflow.utils.state import TaskInstanceState

from hetero_airflow.contract.execution_api import find_problem
from hetero_airflow.contract.state_keys import PREEMPT
from hetero_airflow.engines.celery import CeleryEngine
from hetero_airflow.engines.circuit_breaker import PAUSE_S
from hetero_airflow.engines.engine import EngineContext
from hetero_airflow.executor.airflow_db import state_store
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.executor import HeteroExecutor
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_signer, a_worker
from tests.engines.conftest import a_task
from tests.redis_server import running_redis
from tests.silent_server import silent_server
from tests.waiting import PATIENCE_S, eventually

DEVICES = (a_cpu(), *(a_device(f"GPU-{number}", index=number) for number in range(21)))


@pytest.fixture
def make_executor(make_bench, monkeypatch):
    """An executor over Celery with one worker of 21 GPUs, and its bench."""
    monkeypatch.setattr("hetero_airflow.engines.celery.OPERATION_TIMEOUT", 5)  # the first message loads a lot
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)

    def make(broker_url, result_backend):
        monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", broker_url)
        monkeypatch.setenv("AIRFLOW__CELERY__RESULT_BACKEND", result_backend)
        engine = CeleryEngine(32)
        bench = make_bench(engine=engine)
        worker = a_worker(devices=DEVICES, engine="celery")
        bench.store.record([WorkerSeen(worker)], EPOCH)
        bench.store.invalidate = lambda: None
        workers = bench.dispatcher.store.workers
        engine.start(EngineContext("1", None, None, bench.store.heartbeats, workers, a_signer()))
        executor = HeteroExecutor(parallelism=8)
        executor._engine, executor._clock = engine, bench.clock
        executor._use(bench.dispatcher)
        bench.pass_on = executor._report
        return executor, bench

    return make


def hold(bench, name):
    """Airflow has queued a task of one GPU."""
    workload = a_task(name, executor_config={"hetero": {"gang": 1}})
    bench.tasks.rows[str(workload.ti.id)] = TaskProcess("queued")
    bench.add(workload, DeviceRequest.parse("gpu"))


def waiting(bench):
    return sorted(key.task_id for key in bench.queued)


def beat(executor, bench, seconds=1.0):
    bench.clock.advance(seconds)
    executor.heartbeat()


def test_no_heartbeat_waits_for_a_result_backend_that_never_answers(make_executor, tmp_path):
    with running_redis(tmp_path) as server, silent_server() as silent, redis.Redis.from_url(server.url) as broker:
        executor, bench = make_executor(server.url, f"redis://127.0.0.1:{silent.port}/0")
        calls, seconds = executor._engine.executor.results, [0.0]
        calls._now = lambda: seconds[0]
        for number in range(20):
            hold(bench, f"t{number}")
        beat(executor, bench)
        eventually(lambda: beat(executor, bench) or silent.connections)
        hold(bench, "new")
        beat(executor, bench)
        assert broker.llen("hetero.worker-a") == 21
        assert calls._present is not None, "the first call still waits"
        seconds[0] += 3
        for _ in range(3):
            beat(executor, bench)
        assert len(silent.connections) == 1, "after the first silence, it is not asked again"


def test_nothing_is_leased_while_the_broker_never_answers(make_executor, tmp_path):
    with silent_server() as silent:
        executor, bench = make_executor(f"redis://127.0.0.1:{silent.port}/0", f"db+sqlite:///{tmp_path}/results.db")
        hold(bench, "a")
        beat(executor, bench)
        hold(bench, "b")
        beat(executor, bench)
        assert len(silent.connections) == 1
        assert waiting(bench) == ["b"], "it waits without a lease"
        for _ in range(4):
            beat(executor, bench, 5)
        assert waiting(bench) == ["a", "b"], "what could not be sent waits again"
        assert bench.reports == []


class StateBackend:
    """A service that keeps states, called over a connection. No heartbeat may call it itself."""

    def __init__(self, client):
        self.client, self.texts = client, {}

    def get(self, scope, name, session):
        self._call()
        return self.texts.get((scope.task_id, name))

    def set(self, scope, name, text, session):
        self._call()
        self.texts[scope.task_id, name] = text

    def _call(self):
        assert threading.current_thread() is not threading.main_thread()
        if self.client is not None:
            self.client.ping()


@pytest.fixture
def state_bench(make_bench, monkeypatch):
    """Twenty running tasks and a free GPU, a silent state backend, and the seconds that pass for its calls."""
    with silent_server() as silent, redis.Redis(port=silent.port) as client:
        backend, seconds = StateBackend(client), [0.0]
        bench = make_bench(worker=a_worker(devices=DEVICES))
        monkeypatch.setattr(state_store, "get_state_backend", lambda: backend)
        bench.calls, bench.silent, bench.backend, bench.seconds = bench.commands.states, silent, backend, seconds
        bench.calls._now = lambda: seconds[0]
        for number in range(20):
            bench.hold(f"t{number}")
        bench.beat()
        for request_id in [task.lease.request_id for task in bench.runs.leased.values()]:
            bench.run(request_id)
        yield bench
        bench.dispatcher.resolver.close()


def notify_all(bench):
    """A person wants all devices empty."""
    for task in list(bench.runs.leased.values()):
        bench.commands.notify(task.lease, "drained", bench.clock.now())


def lose_all(bench):
    """The host has lost all processes."""
    bench.engine.alive.clear()
    bench.beat(5, times=4)


def fail_all(bench):
    """All tasks fail."""
    for key, task in list(bench.runs.leased.items()):
        bench.tasks.rows[task.lease.request_id] = TaskProcess("failed", 100, "here")
        bench.end(key)
    bench.engine.alive.clear()


def bring_back_all(bench):
    """All tasks wait again after a failure."""
    for name in [f"t{number}" for number in range(20)]:
        bench.tasks.sent_back.append(bench.hold(f"again-{name}"))


@pytest.mark.parametrize("happens", [notify_all, lose_all, fail_all, bring_back_all])
def test_no_heartbeat_waits_for_a_state_backend_that_never_answers(state_bench, happens):
    happens(state_bench)
    state_bench.beat(5, times=3)
    eventually(lambda: state_bench.silent.connections)
    state_bench.hold("new")
    state_bench.beat(times=3)
    assert state_bench.started[-1] == "new"
    assert state_bench.calls._present is not None, "the first call still waits"
    state_bench.seconds[0] += state_store.CALL_LIMIT_S
    state_bench.beat(times=3)
    assert len(state_bench.silent.connections) == 1, "the others are not made"


def test_the_ends_of_tasks_take_effect_when_the_state_backend_is_given_up(state_bench, caplog):
    """Until then a device of a failed task is not leased again: its failure may be the device's."""
    fail_all(state_bench)
    eventually(lambda: state_bench.beat() or state_bench.silent.connections)
    assert len(state_bench.store.snapshot().leases) == 20
    state_bench.seconds[0] += state_store.CALL_LIMIT_S
    state_bench.beat()
    assert state_bench.store.snapshot().leases == ()
    assert caplog.text.count("It is unknown whether a device caused the failure") == 20


def test_what_was_to_be_written_is_written_when_the_state_backend_answers(state_bench, caplog):
    notify_all(state_bench)
    eventually(lambda: state_bench.silent.connections)
    state_bench.seconds[0] += state_store.CALL_LIMIT_S
    state_bench.beat()
    assert caplog.text.count("The task state backend does not answer: TimeoutError: no answer within 3 s.") == 1
    state_bench.backend.client = None
    state_bench.beat()
    assert state_bench.backend.texts == {}, "the pause is not over"
    state_bench.seconds[0] += PAUSE_S
    eventually(lambda: state_bench.beat() or len(state_bench.backend.texts) == 20)
    assert {name for _, name in state_bench.backend.texts} == {PREEMPT}


def test_what_is_never_written_is_in_the_log(state_bench, caplog):
    notify_all(state_bench)
    eventually(lambda: state_bench.silent.connections)
    state_bench.seconds[0] += state_store.CALL_LIMIT_S
    state_bench.dispatcher.close()
    assert "did not answer before the end: 't0 could not be told to save" in caplog.text


def test_no_heartbeat_waits_for_an_api_server_that_never_answers(state_bench):
    with silent_server() as silent:
        client = Client(base_url=f"http://127.0.0.1:{silent.port}", token="", timeout=PATIENCE_S)
        state_bench.api._find_problem = lambda: find_problem(client)
        state_bench.api.start()
        eventually(lambda: silent.connections)
        state_bench.hold("new")
        state_bench.beat(times=3)
        assert state_bench.started[-1] == "new", "the answer is not known yet"
        state_bench.api.close()


def test_the_scheduler_never_loads_what_calls_object_stores_or_servers():
    """So that no heartbeat can wait for them."""
    code = "import sys, hetero_airflow.executor.executor\nprint(*sys.modules)"
    listing = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(listing.stdout.split())
    ours = {"hetero_airflow.checkpoints.object_client", "hetero_airflow.checkpoints.object_store"}
    assert loaded.isdisjoint({"boto3", "botocore", "hetero_airflow.agent.connection", *ours})
    assert TaskInstanceState.__module__ in loaded
