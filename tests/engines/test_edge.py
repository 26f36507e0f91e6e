"""The engine against EdgeExecutor's own table; the edge worker is the test, which changes the jobs' states."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.providers.edge3.models.edge_job import EdgeJobModel
from airflow.utils.state import TaskInstanceState
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Text, create_engine, select, update
from sqlalchemy.orm import sessionmaker

from hetero_airflow.contract.envelope import add_lease
from hetero_airflow.engines.edge import EdgeEngine
from hetero_airflow.engines.engine import EngineContext, Liveness
from hetero_airflow.errors import EngineError
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.testing import a_signer, a_task_lease, a_worker
from tests.engines.conftest import a_lease, a_task, liveness

WORKER = a_worker("w1").model_copy(update={"engine": "edge"})


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Airflow's session on a database of our own, with EdgeExecutor's tables."""
    database = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    EdgeJobModel.metadata.create_all(database)
    make = sessionmaker(database)
    monkeypatch.setattr("airflow.settings.Session", make)
    monkeypatch.setattr("airflow.settings.NonScopedSession", make)
    yield make
    database.dispose()


@pytest.fixture
def engine(session, heartbeats):
    engine = EdgeEngine(8)
    engine.executor.start = lambda: None
    engine.start(EngineContext("1", None, None, lambda: heartbeats, lambda: {"w1": WORKER}, a_signer()))
    return engine


def place(engine, name="a"):
    task = a_task(name, "hetero")
    lease = a_lease(task)
    engine.hand_over(task, lease, WORKER)
    return task, lease


def jobs(session):
    with session() as open_session:
        return {job.task_id: (job.queue, job.state) for job in open_session.scalars(select(EdgeJobModel))}


def report(session, state):
    """What an edge worker tells the API server of the only job."""
    with session.begin() as open_session:
        open_session.execute(update(EdgeJobModel).values(state=state, last_update=datetime.now(UTC)))


def fetch(session, worker="w1"):
    """A worker takes the only job, as EdgeExecutor's route does it."""
    with session.begin() as open_session:
        open_session.execute(update(EdgeJobModel).values(state=TaskInstanceState.RESTARTING, edge_worker=worker))


def test_a_placed_task_is_a_job_for_its_worker_and_a_plain_one_for_its_queue(engine, session):
    task, _ = place(engine)
    engine.hand_over_unplaced(a_task("plain", "hetero"))
    assert jobs(session) == {"a": ("hetero.w1", "queued"), "plain": ("hetero", "queued")}
    assert task.ti.queue == "hetero", "the coordinator is found by it"
    assert engine.occupied_slots == 1


def test_a_plain_task_whose_supervisor_is_lost_is_not_counted_and_reports_nothing_any_more(engine, session):
    task = a_task("plain", "default")
    engine.hand_over_unplaced(task)
    fetch(session)
    report(session, TaskInstanceState.RUNNING)
    engine.collect()
    assert engine.occupied_slots == 1
    engine.forget(task.key)
    report(session, TaskInstanceState.FAILED)
    assert (engine.occupied_slots, engine.collect()) == (0, {})


def test_a_job_that_nobody_has_taken_is_withdrawn_and_no_other(engine, session):
    task, lease = place(engine)
    assert engine.withdraw(task.key)
    assert liveness(engine, lease, "queued") is Liveness.GONE
    assert jobs(session) == {}
    task, lease = place(engine)
    fetch(session)
    report(session, TaskInstanceState.RUNNING)
    assert not engine.withdraw(task.key)
    assert jobs(session) == {"a": ("hetero.w1", "running")}


def test_the_end_of_a_job_is_reported_and_its_processes_are_the_agents_to_judge(engine, session, heartbeats):
    task, lease = place(engine)
    fetch(session)
    report(session, TaskInstanceState.RUNNING)
    engine.collect()
    report(session, TaskInstanceState.SUCCESS)
    assert engine.collect()[task.key][0] == TaskInstanceState.SUCCESS
    now = datetime.now(UTC)
    assert liveness(engine, lease, "success", now) is Liveness.UNKNOWN
    heartbeats["w1"] = WorkerHeartbeat(now + timedelta(seconds=5), frozenset())
    assert liveness(engine, lease, "success", now) is Liveness.GONE
    assert engine.occupied_slots == 0


@pytest.mark.parametrize("state", ["running", "success", "failed"])
def test_a_job_whose_earlier_run_is_reported_before_a_worker_has_fetched_it_is_queued_again(engine, session, state):
    task, lease = place(engine)
    fetch(session)
    report(session, TaskInstanceState.RUNNING)
    engine.collect()
    task.ti.queue = "hetero"
    engine.hand_over(task, lease.model_copy(update={"id": "the next", "worker_id": "w1"}), WORKER)
    report(session, TaskInstanceState(state))
    assert engine.collect() == {}
    assert jobs(session) == {"a": ("hetero.w1", "queued")}
    assert task.key in engine.executor.running
    fetch(session)
    report(session, TaskInstanceState.SUCCESS)
    assert engine.collect()[task.key][0] == TaskInstanceState.SUCCESS


def test_no_worker_gets_an_old_job_of_a_task_that_waits_again(engine, session, monkeypatch):
    """EdgeExecutor gives a job that was not reported for long the state of its task: QUEUED, in its old queue."""
    task, _ = place(engine)
    fetch(session)
    with session.begin() as open_session:
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        open_session.execute(update(EdgeJobModel).values(state=TaskInstanceState.RUNNING, last_update=long_ago))
    monkeypatch.setattr(TaskInstance, "get_task_instance", lambda **_: SimpleNamespace(state=TaskInstanceState.QUEUED))
    engine.collect()
    assert jobs(session) == {}, "it is purged like a removed one"
    engine.hand_over(task, a_lease(task), WORKER)
    engine.collect()
    assert jobs(session) == {"a": ("hetero.w1", "queued")}


def test_a_job_that_the_table_can_not_hold_is_refused_with_its_length(engine, session):
    task = a_task("long", "hetero", context_carrier={"hetero": "x" * 3000})
    with pytest.raises(EngineError, match=r"edge worker w1 a job with 1 devices; found \d+ characters; .* takes 2048"):
        engine.hand_over(task, a_lease(task), WORKER)
    assert jobs(session) == {}


def test_a_long_job_is_sent_where_the_table_has_no_limit(monkeypatch, request):
    """As in edge3 5.2; the column is made a text before the table is created."""
    monkeypatch.setattr(EdgeJobModel.__table__.c.command, "type", Text())
    engine, session = (request.getfixturevalue(name) for name in ("engine", "session"))
    task = a_task("long", "hetero", context_carrier={"hetero": "x" * 3000})
    engine.hand_over(task, a_lease(task), WORKER)
    assert jobs(session) == {"long": ("hetero.w1", "queued")}


def test_a_job_for_a_host_with_eight_gpus_fits_into_the_table(engine, session):
    """All of the sizes are those of a real one: the token, the signed grant, the ids and the nodes of the devices."""
    names = {"dag_id": "nightly_training_of_recommendations", "task_id": "train_on_all_devices_of_a_host"}
    run_id, ti_id = "scheduled__2026-11-22T00:00:00+00:00", uuid4()
    task = "/".join((*names.values(), run_id, "-1"))
    signer = GrantSigner(Ed25519PrivateKey.generate())
    grant = signer.sign(lease=f"{ti_id}-1234", token=1234, task=task, start_by=1_790_000_000)
    lease = a_task_lease(
        id=f"{ti_id}-1234", token=1234, model="a100-sxm4-80gb", ids=tuple(f"GPU-{uuid4()}" for _ in range(8)),
        indexes=tuple(range(8)), nodes=tuple(f"/dev/nvidia{n}" for n in range(8)), is_remote=True, grant=grant.pack(),
    )  # fmt: skip
    ti = a_task("a", "hetero", external_executor_id=None).ti.model_copy(
        update={**names, "id": ti_id, "run_id": run_id, "map_index": -1, "context_carrier": add_lease({}, lease)}
    )
    log_path = f"dag_id={ti.dag_id}/run_id={ti.run_id}/task_id={ti.task_id}/attempt=1.log"
    workload = a_task("a").model_copy(update={"ti": ti, "token": "x" * 405, "log_path": log_path})
    engine.hand_over(workload, a_lease(workload), WORKER)
    assert list(jobs(session)) == [ti.task_id]
