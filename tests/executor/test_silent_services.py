"""Services that accept connections and never answer do not stop the executor's heartbeat."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import redis
from airflow.utils.state import TaskInstanceState

from hetero_airflow.engines.celery import CeleryEngine
from hetero_airflow.engines.engine import EngineContext
from hetero_airflow.executor.airflow_db import state_store
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.executor import HeteroExecutor
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_signer, a_worker
from tests.engines.conftest import a_task
from tests.redis_server import running_redis
from tests.silent_server import silent_server


@pytest.fixture
def make_executor(make_bench, monkeypatch):
    """An executor over Celery with one worker of two GPUs, and its bench."""
    monkeypatch.setattr("hetero_airflow.engines.celery.OPERATION_TIMEOUT", 5)  # the first message loads a lot
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)

    def make(broker_url, result_backend):
        monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", broker_url)
        monkeypatch.setenv("AIRFLOW__CELERY__RESULT_BACKEND", result_backend)
        engine = CeleryEngine(8)
        bench = make_bench(engine=engine)
        worker = a_worker().model_copy(update={"engine": "celery"})
        bench.store.record([WorkerSeen(worker)], EPOCH)
        bench.store.invalidate = lambda: None
        workers = bench.dispatcher.workers.current
        engine.start(EngineContext("1", None, None, bench.store.heartbeats, workers, a_signer()))
        executor = HeteroExecutor(parallelism=8)
        executor._engine, executor._clock = engine, bench.clock
        executor._use(bench.store, bench.dispatcher)
        return executor, bench

    return make


def hold(bench, name):
    """Airflow has queued a task of one GPU."""
    workload = a_task(name, executor_config={"hetero": {"gang": 1}})
    bench.tasks.rows[str(workload.ti.id)] = TaskProcess("queued")
    bench.queue.add(workload, DeviceRequest.parse("gpu"), bench.clock.now())


def waiting(bench):
    return sorted(key.task_id for key in bench.queue.tasks)


def beat(executor, bench, seconds=1.0):
    bench.clock.advance(seconds)
    executor.heartbeat()


def test_tasks_are_placed_while_the_result_backend_never_answers(make_executor, tmp_path):
    with running_redis(tmp_path) as server, silent_server() as silent, redis.Redis.from_url(server.url) as broker:
        executor, bench = make_executor(server.url, f"redis://127.0.0.1:{silent.port}/0")
        for number, name in enumerate("ab"):
            hold(bench, name)
            beat(executor, bench)
            assert broker.llen("hetero.worker-a") == number + 1
        assert len(silent.connections) == 1


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


def test_a_state_backend_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(state_store, "CALL_LIMIT_S", 0.2)
    with silent_server() as silent, redis.Redis(port=silent.port) as client:
        backend = SimpleNamespace(
            get=lambda scope, name, session: client.get(name),
            set=lambda scope, name, text, session: client.set(name, text),
        )
        monkeypatch.setattr(state_store, "get_state_backend", lambda: backend)
        monkeypatch.setattr(state_store, "_scope", lambda key: key)
        with pytest.raises(TimeoutError, match=r"did not answer within 0\.2 s"):
            state_store.write_state("key", "name", "{}")
        with pytest.raises(TimeoutError, match=r"did not answer within 0\.2 s"):
            state_store.read_states(["key"], "name")


def test_the_scheduler_never_loads_what_calls_object_stores_or_servers():
    """So that no heartbeat can wait for them."""
    code = "import sys, hetero_airflow.executor.executor\nprint(*sys.modules)"
    listing = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(listing.stdout.split())
    ours = {"hetero_airflow.checkpoints.object_client", "hetero_airflow.checkpoints.object_store"}
    assert loaded.isdisjoint({"boto3", "botocore", "hetero_airflow.agent.connection", *ours})
    assert TaskInstanceState.__module__ in loaded
