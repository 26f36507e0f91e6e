"""The engine against a real Redis; the Celery worker is the test, which reads the queues."""

import contextlib
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import redis
from airflow.utils.state import TaskInstanceState
from celery import states
from celery.contrib.testing.worker import start_worker

from hetero_airflow.engines.celery import CeleryEngine
from hetero_airflow.engines.engine import EngineContext, Liveness
from hetero_airflow.engines.remote import worker_queue
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.testing import a_signer, a_worker
from tests.engines.conftest import a_lease, a_task, liveness
from tests.redis_server import running_redis
from tests.silent_server import silent_server
from tests.waiting import PATIENCE_S, eventually

WORKERS = {id_: a_worker(id_).model_copy(update={"engine": "celery"}) for id_ in ("w1", "w2")}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def broker(server):
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def make_engine(heartbeats, monkeypatch, tmp_path):
    """Makes an engine; by default, its results are in SQLite. The first message in a process loads a lot."""
    monkeypatch.setattr("hetero_airflow.engines.celery.OPERATION_TIMEOUT", 5)

    def make(broker_url, result_backend=f"db+sqlite:///{tmp_path}/results.db", patience_s=PATIENCE_S):
        monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", broker_url)
        monkeypatch.setenv("AIRFLOW__CELERY__RESULT_BACKEND", result_backend)
        engine = CeleryEngine(8)
        engine.executor.patience_s = patience_s
        engine.start(EngineContext("1", None, None, lambda: heartbeats, lambda: WORKERS, a_signer()))
        return engine

    return make


@pytest.fixture
def engine(server, broker, make_engine, monkeypatch):
    """One that tries again at once what failed."""
    monkeypatch.setattr("hetero_airflow.engines.circuit_breaker.PAUSE_S", 0)
    return make_engine(server.url)


def queued(broker, queue):
    """Task ids and headers in a queue, the newest first."""
    return [json.loads(text)["headers"] for text in broker.lrange(queue, 0, -1)]


def expire(broker):
    """Let the messages that were delivered and not acknowledged expire, as after `START_TIMEOUT_S`."""
    for tag, text in broker.hgetall("unacked").items():
        message, *place = json.loads(text)
        message["headers"]["expires"] = datetime.now(UTC).isoformat()
        broker.hset("unacked", tag, json.dumps([message, *place]))


def place(engine, name="a", worker="w1"):
    task = a_task(name)
    lease = a_lease(task, worker)
    engine.hand_over(task, lease, WORKERS[worker])
    return task, lease


def answer(engine, task, state):
    """What a Celery worker writes into the result backend."""
    engine.executor.celery_app.backend.store_result(task.ti.external_executor_id, None, state)


def state_of(engine, task):
    """What a Celery worker has written there."""
    return engine.executor.celery_app.backend.get_state(task.ti.external_executor_id)


@contextlib.contextmanager
def celery_worker(engine, **options):
    """A real worker that receives the broadcasts to all workers. Returns a function that lets it consume a queue.

    One at a time: all workers of a process have the same event loop.
    """
    app, name = engine.executor.celery_app, "w1@host"
    options = {"queues": ["elsewhere"], "perform_ping_check": False, "loglevel": "warning"} | options
    with start_worker(app, hostname=name, shutdown_timeout=PATIENCE_S, **options):
        eventually(lambda: app.control.ping(destination=[name], timeout=1))

        def listen_to(queue):
            assert app.control.add_consumer(queue, destination=[name], reply=True, timeout=20)

        yield listen_to


def test_each_placed_task_goes_to_the_queue_of_its_worker_and_is_void_later(engine, broker):
    (first, _), (second, _) = place(engine, "a", "w1"), place(engine, "b", "w2")
    engine.heartbeat()
    (first_message,), (two,) = queued(broker, "hetero.w1"), queued(broker, "hetero.w2")
    assert (first_message["id"], two["id"]) == (first.ti.external_executor_id, second.ti.external_executor_id)
    assert first_message["expires"] is not None
    assert engine.occupied_slots == 0


def test_a_task_that_is_handed_over_again_after_a_failure_gets_no_result_of_the_first_time(engine, broker):
    task, lease = place(engine)
    engine.heartbeat()
    first = task.ti.external_executor_id
    answer(engine, task, "FAILURE")
    assert engine.collect()[task.key][0] == "failed"
    engine.hand_over(task, lease, WORKERS["w1"])
    engine.heartbeat()
    assert task.ti.external_executor_id != first
    assert engine.collect().get(task.key, ("queued", None))[0] == "queued"
    assert task.key in engine._leases


def test_plain_tasks_go_to_their_own_queue_and_are_never_void(engine, broker):
    engine.hand_over_unplaced(a_task("plain", "cpu"))
    engine.heartbeat()
    assert [header["expires"] for header in queued(broker, "cpu")] == [None]
    assert engine.occupied_slots == 1


def test_as_many_are_sent_at_once_as_parallelism_leaves(engine, broker):
    for number in range(8):
        place(engine, f"t{number}")
    assert engine.open_slots() == 0
    engine.heartbeat()
    assert len(queued(broker, "hetero.w1")) == 8
    place(engine, "one too many")
    engine.heartbeat()
    assert len(queued(broker, "hetero.w1")) == 8


def test_a_task_that_is_not_sent_yet_can_be_withdrawn(engine, broker):
    task, lease = place(engine)
    assert engine.withdraw(task.key)
    assert liveness(engine, lease, None) is Liveness.GONE
    engine.heartbeat()
    assert not engine.withdraw(task.key)
    assert queued(broker, "hetero.w1") == []


@pytest.mark.parametrize("is_placed", [True, False])
def test_a_worker_passes_over_what_was_sent_and_withdrawn(engine, is_placed):
    """A placed task is followed until its lease is free; a plain one is forgotten, since Airflow sends it again."""
    task, queue = a_task("a", "cpu"), "cpu"
    if is_placed:
        (task, lease), queue = place(engine), worker_queue("w1")
    else:
        engine.hand_over_unplaced(task)
    engine.heartbeat()
    engine.collect()
    with celery_worker(engine) as listen_to:
        assert not engine.withdraw(task.key), "it has left this process"
        assert engine.has_task(task.ti) is is_placed
        listen_to(queue)
        eventually(lambda: state_of(engine, task) in states.READY_STATES)
    assert (state_of(engine, task), engine.collect()) == (states.REVOKED, {})
    assert engine.executor.running == set()
    if is_placed:
        assert liveness(engine, lease, "queued") is Liveness.GONE


def test_an_end_in_order_says_that_no_process_of_the_lease_is_left(engine):
    task, lease = place(engine)
    engine.heartbeat()
    engine.collect()
    answer(engine, task, states.SUCCESS)
    assert engine.collect()[task.key] == (TaskInstanceState.SUCCESS, None)
    assert liveness(engine, lease) is Liveness.GONE


def test_after_a_failure_of_the_workers_process_the_agent_is_waited_for(engine, heartbeats):
    now = datetime.now(UTC)
    task, lease = place(engine)
    engine.heartbeat()
    answer(engine, task, states.FAILURE)
    assert engine.collect()[task.key][0] == TaskInstanceState.FAILED
    heartbeats["w1"] = WorkerHeartbeat(now, frozenset({lease.id}))
    assert liveness(engine, lease, "failed", now) is Liveness.ALIVE
    heartbeats["w1"] = WorkerHeartbeat(now + timedelta(seconds=5), frozenset())
    assert liveness(engine, lease, "failed", now) is Liveness.GONE


def test_a_message_that_expired_is_no_failure(engine, broker):
    task, lease = place(engine)
    engine.heartbeat()
    first_id = task.ti.external_executor_id
    answer(engine, task, states.REVOKED)
    assert TaskInstanceState.FAILED not in {state for state, _ in engine.collect().values()}
    assert liveness(engine, lease, "queued") is Liveness.GONE
    engine.hand_over(task, a_lease(task), WORKERS["w1"])
    engine.heartbeat()
    ids = [header["id"] for header in queued(broker, "hetero.w1")]
    assert len(set(ids)) == 2, "it would have Celery's answer to the message before"
    assert first_id in ids


def test_a_task_that_outlives_the_visibility_timeout_of_redis_runs_on(make_engine, server, broker, monkeypatch):
    """Redis hands out its message again; the worker that gets it finds it expired and writes REVOKED over STARTED."""
    for option, seconds in {"VISIBILITY_TIMEOUT": "5", "UNACKED_RESTORE_INTERVAL": "1"}.items():
        monkeypatch.setenv(f"AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__{option}", seconds)
    engine, may_end = make_engine(server.url), threading.Event()
    monkeypatch.setattr(engine.executor.celery_app.tasks["execute_workload"], "run", lambda _: may_end.wait())
    task, lease = place(engine)
    engine.heartbeat()
    with celery_worker(engine, pool="threads", concurrency=2) as listen_to, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(may_end.set)
        listen_to(worker_queue("w1"))
        eventually(lambda: state_of(engine, task) == states.STARTED)
        engine.collect()
        expire(broker)
        eventually(lambda: state_of(engine, task) == states.REVOKED)
        assert engine.collect() == {}
        assert liveness(engine, lease, seen_at=datetime.now(UTC)) is not Liveness.GONE
        may_end.set()
        eventually(lambda: state_of(engine, task) == states.SUCCESS)
    assert engine.collect()[task.key][0] == TaskInstanceState.SUCCESS


@pytest.mark.parametrize("seen_by", ["its agent", "an earlier scheduler"])
def test_a_message_that_is_revoked_after_a_process_was_seen_says_nothing(engine, heartbeats, seen_by):
    task, lease = place(engine)
    engine.heartbeat()
    if seen_by == "its agent":
        heartbeats["w1"] = WorkerHeartbeat(datetime.now(UTC), frozenset({lease.id}))
    else:
        engine.try_adopt([running(task)])
    answer(engine, task, states.REVOKED)
    assert {state for state, _ in engine.collect().values()} <= {TaskInstanceState.QUEUED}
    seen_at = datetime.now(UTC)
    assert liveness(engine, lease, seen_at=seen_at) is not Liveness.GONE
    heartbeats["w1"] = WorkerHeartbeat(seen_at + timedelta(seconds=5), frozenset())
    assert liveness(engine, lease, seen_at=seen_at) is Liveness.GONE


def test_a_requeued_task_whose_message_expires_is_no_longer_running(engine, heartbeats):
    task, lease = place(engine)
    engine.heartbeat()
    heartbeats["w1"] = WorkerHeartbeat(datetime.now(UTC), frozenset({lease.id}))
    engine.collect()
    lease = a_lease(task).model_copy(update={"id": "the second"})
    engine.hand_over(task, lease, WORKERS["w1"])
    engine.heartbeat()
    answer(engine, task, states.REVOKED)
    engine.collect()
    assert liveness(engine, lease, "queued") is Liveness.GONE
    assert task.key not in engine.executor.running


def test_a_broker_that_is_away_fails_no_task_and_stops_nothing(engine, server):
    task, lease = place(engine)
    second_task, _ = place(engine, "b")
    server.kill()
    engine.heartbeat()
    assert engine.collect() == {}
    assert liveness(engine, lease, "queued") is Liveness.GONE
    assert engine.occupied_slots == 0
    server.start()
    for again in (task, second_task):
        engine.hand_over(again, a_lease(again), WORKERS["w1"])
    engine.heartbeat()
    assert {state for state, _ in engine.collect().values()} == {TaskInstanceState.QUEUED}


def test_a_sent_task_can_be_withdrawn_while_the_broker_is_away(engine, server):
    task, lease = place(engine)
    engine.heartbeat()
    server.kill()
    assert not engine.withdraw(task.key)
    server.start()
    assert engine.collect() == {task.key: (TaskInstanceState.QUEUED, task.ti.external_executor_id)}
    assert liveness(engine, lease, "queued") is Liveness.UNKNOWN


def running(task):
    """The task instance, as Airflow offers it for adoption."""
    values = {"key": task.key, "external_executor_id": task.ti.external_executor_id}
    return SimpleNamespace(**values, state=TaskInstanceState.RUNNING)


def test_a_task_of_a_dead_scheduler_is_followed(engine):
    task = a_task("a")
    answer(engine, task, states.STARTED)
    assert list(engine.try_adopt([running(task)])) == []
    answer(engine, task, states.SUCCESS)
    assert engine.collect()[task.key][0] == TaskInstanceState.SUCCESS


def test_a_plain_task_whose_supervisor_is_lost_is_not_counted_and_reports_nothing_any_more(engine, broker):
    task = a_task("a")
    engine.hand_over_unplaced(task)
    beat(engine)
    assert engine.occupied_slots == 1
    engine.forget(task.key)
    answer(engine, task, states.FAILURE)
    assert (engine.occupied_slots, engine.collect()) == (0, {})


def beat(engine):
    engine.heartbeat()
    engine.collect()


def test_a_broker_that_never_answers_is_asked_in_one_heartbeat_and_not_in_the_next(make_engine):
    with silent_server() as silent:
        engine = make_engine(f"redis://127.0.0.1:{silent.port}/0")
        placed = [place(engine, f"placed{number}") for number in range(3)]
        for number in range(3):
            engine.hand_over_unplaced(a_task(f"plain{number}", "cpu"))
        beat(engine)
        tries = len(silent.connections)
        assert [liveness(engine, lease, "queued") for _, lease in placed] == [Liveness.GONE] * 3, "they wait again"
        assert {key.task_id for key in engine.executor.queued_tasks} == {"plain0", "plain1", "plain2"}
        assert engine.open_slots() == 0, "nothing more is placed"
        beat(engine)
        engine.withdraw(placed[0][0].key)
        assert len(silent.connections) == tries, "the engine did not call it again"


def test_what_waited_for_a_silent_broker_is_sent_when_it_answers(make_engine, server, broker, monkeypatch):
    with silent_server() as silent:
        engine = make_engine(f"redis://127.0.0.1:{silent.port}/0")
        task, _ = place(engine)
        engine.hand_over_unplaced(a_task("plain", "cpu"))
        engine.heartbeat()
        engine.executor.celery_app = make_engine(server.url).executor.celery_app
        engine.heartbeat()
        assert queued(broker, "cpu") == [], "the pause is not over"
        monkeypatch.setattr(engine.executor.broker, "_now", lambda: time.monotonic() + 60)
        engine.hand_over(task, a_lease(task), WORKERS["w1"])
        engine.heartbeat()
        assert (len(queued(broker, "cpu")), len(queued(broker, "hetero.w1"))) == (1, 1)
        assert engine.open_slots() == 6


@pytest.mark.parametrize(
    "backend",
    ["redis://127.0.0.1:{}/0", "db+postgresql+psycopg2://airflow@127.0.0.1:{}/airflow"],
    ids=lambda url: url[:5],
)
def test_a_result_backend_that_never_answers_keeps_no_task_from_its_worker(make_engine, server, broker, backend):
    with silent_server() as silent:
        engine = make_engine(server.url, backend.format(silent.port), patience_s=0)
        place(engine, "a")
        engine.hand_over_unplaced(a_task("plain", "cpu"))
        beat(engine)
        assert (len(queued(broker, "hetero.w1")), len(queued(broker, "cpu"))) == (1, 1)
        eventually(lambda: silent.connections)
        tries = len(silent.connections)
        place(engine, "b", "w2")
        beat(engine)
        assert len(queued(broker, "hetero.w2")) == 1
        assert len(silent.connections) == tries, "the engine did not call it again"


@pytest.mark.filterwarnings("ignore:.*setex.*:DeprecationWarning")
def test_a_redis_that_was_away_is_used_again_as_broker_and_as_result_backend(make_engine, server, broker, monkeypatch):
    monkeypatch.setattr("hetero_airflow.engines.circuit_breaker.PAUSE_S", 0)
    engine = make_engine(server.url, server.url)
    first, _ = place(engine, "a")
    beat(engine)
    server.kill()
    place(engine, "b")
    beat(engine)
    server.start()
    second, _ = place(engine, "c", "w2")
    engine.heartbeat()
    assert len(queued(broker, "hetero.w2")) == 1
    for task in (first, second):
        answer(engine, task, states.SUCCESS)
    ends = engine.collect()
    assert {ends[task.key][0] for task in (first, second)} == {TaskInstanceState.SUCCESS}


def test_adoption_and_the_end_ask_a_silent_backend_once(make_engine, server, broker, caplog, monkeypatch):
    with silent_server() as silent:
        engine = make_engine(server.url, f"redis://127.0.0.1:{silent.port}/0", patience_s=0)
        task = a_task("a")
        assert list(engine.try_adopt([running(task)])) == []
        assert task.key in engine.executor.running
        engine.collect()
        eventually(lambda: silent.connections)
        monkeypatch.setattr(engine.executor.results, "_now", lambda: time.monotonic() + 3)
        engine.end()
        assert len(silent.connections) == 1, "after the first silence, it is not asked again"
    assert "no answer within 3 s" in caplog.text, "our limit ends the question, not the longer one of Redis's client"


def test_a_message_that_can_not_be_made_says_nothing_about_the_broker(engine, broker, monkeypatch):
    task, lease = place(engine)
    monkeypatch.setattr(type(task), "model_dump_json", lambda self: {1: object()}[2])
    plain = a_task("plain", "cpu")
    engine.hand_over_unplaced(plain)
    engine.heartbeat()
    monkeypatch.undo()
    assert engine.collect()[plain.key][0] == TaskInstanceState.FAILED
    assert liveness(engine, lease, "queued") is Liveness.GONE
    assert engine.open_slots() == 8
