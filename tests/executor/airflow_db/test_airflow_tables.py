"""What is asked of Airflow's own tables, on a real SQLite: task instances, and what templates may use."""

from contextlib import contextmanager
from datetime import UTC, timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from airflow.models import import_all_models
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.taskreschedule import TaskReschedule
from airflow.serialization.definitions.param import SerializedParam, SerializedParamsDict
from sqlalchemy import create_engine, insert, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from hetero_airflow.errors import RequestError
from hetero_airflow.executor.airflow_db import task_instances
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.airflow_db.template_context import read_context
from hetero_airflow.model.gang import gang_member
from hetero_airflow.testing import EPOCH


@pytest.fixture
def database():
    """Tables of Airflow, with one DAG run."""
    import_all_models()  # the foreign keys of some name the tables of others
    engine = create_engine("sqlite://")
    for model in (DagRun, TaskInstance, TaskInstanceHistory, TaskReschedule, HITLDetail):
        model.__table__.create(engine)
    run = {
        "dag_id": "dag", "run_id": "run", "run_type": "manual", "state": "running", "run_after": EPOCH,
        "log_template_id": 1, "logical_date": EPOCH, "conf": {"kind": "a100"},
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(insert(DagRun.__table__).values(run))
    yield engine
    engine.dispose()


@pytest.fixture
def add(database, monkeypatch):
    """Adds a task instance in a state."""

    @contextmanager
    def create_session(scoped):
        with Session(database) as session:
            yield session
            session.commit()

    monkeypatch.setattr(task_instances, "create_session", create_session)

    def add(map_index, state, run_id="run", task_id="train"):
        row = {
            "id": uuid4(), "task_id": task_id, "dag_id": "dag", "run_id": run_id, "map_index": map_index,
            "state": state, "pool": "p", "pool_slots": 1, "executor_config": {}, "try_number": 1,
        }  # fmt: skip
        with database.begin() as connection:
            connection.execute(insert(TaskInstance.__table__).values(row))
        return str(row["id"])

    return add


def test_the_members_of_gangs_are_listed_by_rank_and_not_mixed_up(add, monkeypatch):
    monkeypatch.setattr(task_instances, "_MAX_GANGS", 2)
    for index, state in enumerate(["running", None, "failed", "queued", "success"]):
        add(index, state)
    add(0, "running", run_id="another run")
    add(0, "running", task_id="another task")
    members = [
        gang_member("dag", "run", "train", 1, 2),
        gang_member("dag", "run", "train", 3, 2),
        gang_member("dag", "run", "train", 4, 2),
        gang_member("dag", "run", "gone", 0, 2),
    ]
    assert TaskInstances().members(members) == {
        "dag.train[0-1] (run)": {0: "running", 1: None},
        "dag.train[2-3] (run)": {0: "failed", 1: "queued"},
        "dag.train[4-5] (run)": {0: "success"},
        "dag.gone[0-1] (run)": {},
    }


def test_what_is_not_needed_any_more_is_done_if_it_still_waits(add):
    ids = [add(0, "queued"), add(1, "running"), add(2, "failed")]
    add(3, "queued")
    TaskInstances().finish(ids, EPOCH)
    (states,) = TaskInstances().members([gang_member("dag", "run", "train", 0, 4)]).values()
    assert states == {0: "success", 1: "running", 2: "failed", 3: "queued"}


def test_a_task_that_runs_is_shown_to_be_alive_and_no_other(add):
    ids = [add(0, "running"), add(1, "queued"), add(2, "success")]
    add(3, "running")
    tasks = TaskInstances()
    tasks.refresh_running(ids, EPOCH)
    tasks.refresh_running([], EPOCH)
    seen = {id_: process.seen_at for id_, process in tasks.processes(ids).items()}
    assert seen == {ids[0]: EPOCH, ids[1]: None, ids[2]: None}


@pytest.mark.parametrize(("even_queued", "queued"), [(False, "queued"), (True, "up_for_reschedule")])
def test_what_runs_is_sent_back_to_be_scheduled_and_what_is_queued_only_if_it_is_known_to_have_run(
    add, even_queued, queued
):
    ids = [add(index, state) for index, state in enumerate(["running", "queued", "failed", "up_for_reschedule"])]
    tasks = TaskInstances()
    done = [tasks.reschedule(id_, EPOCH, EPOCH, even_queued=even_queued) for id_ in ids]
    (states,) = tasks.members([gang_member("dag", "run", "train", 0, 4)]).values()
    assert states == {0: "up_for_reschedule", 1: queued, 2: "failed", 3: "up_for_reschedule"}
    assert done == [True, even_queued, False, False]
    assert tasks.rescheduled(ids) == ids[: 1 + even_queued]


def test_a_try_that_has_just_ended_is_told_from_those_that_run_or_ended_long_ago(add):
    ids = [add(index, state) for index, state in enumerate(["success", "failed", "running", "queued", "success"])]
    ended = [EPOCH, EPOCH, EPOCH, EPOCH, EPOCH - timedelta(hours=1)]
    with task_instances.create_session(scoped=False) as session:
        for id_, end_date in zip(ids, ended, strict=True):
            session.execute(update(TaskInstance).where(TaskInstance.id == UUID(id_)).values(end_date=end_date))
    assert TaskInstances().ended_since(ids, EPOCH - timedelta(seconds=30)) == set(ids[:2])
    assert TaskInstances().ended_since([], EPOCH) == set()


def test_the_span_of_a_try_is_found_also_after_the_next_try_has_begun(add):
    id_, unknown = add(-1, "running"), str(uuid4())
    tasks = TaskInstances()
    assert (tasks.trace_carrier(id_), tasks.trace_carrier(unknown)) == (None, None)
    with task_instances.create_session(scoped=False) as session:
        row = session.get(TaskInstance, UUID(id_))
        row.context_carrier = {"traceparent": "00-1-2-01"}
    assert tasks.trace_carrier(id_) == {"traceparent": "00-1-2-01"}
    with task_instances.create_session(scoped=False) as session:
        session.get(TaskInstance, UUID(id_)).prepare_db_for_next_try(session)
    assert tasks.trace_carrier(id_) == {"traceparent": "00-1-2-01"}


@pytest.fixture
def session(database):
    with Session(database) as session:
        yield session


@pytest.fixture
def define(monkeypatch):
    """Sets the params of the DAG."""

    def define(**params):
        dag = SimpleNamespace(params=SerializedParamsDict(params))
        monkeypatch.setattr(SerializedDagModel, "get", lambda dag_id, session: SimpleNamespace(dag=dag))

    return define


def test_params_are_the_defaults_of_the_dag_and_the_conf_of_the_run(session, define):
    define(n=SerializedParam(2, type="integer"), kind=SerializedParam("gpu"), late=SerializedParam())
    context = read_context(session, "dag", "run", {})
    assert context["params"] == {"n": 2, "kind": "a100", "late": None}
    assert (context["run_id"], context["ds"]) == ("run", f"{EPOCH:%Y-%m-%d}")
    assert (context["logical_date"], context["logical_date"].tzinfo) == (EPOCH, UTC)
    assert context["dag_run"]["conf"] == {"kind": "a100"}


def test_a_pattern_in_a_schema_is_not_run_in_the_scheduler(session, define):
    """It takes longer than the universe is old."""
    define(text=SerializedParam("a" * 60 + "!", type="string", pattern="^(a+)+$"))
    assert read_context(session, "dag", "run", {})["params"]["text"] == "a" * 60 + "!"


def test_a_run_that_does_not_exist_is_an_error(session, define):
    define()
    with pytest.raises(RequestError, match="no such DAG run"):
        read_context(session, "dag", "another", {})


def test_a_dag_that_can_not_be_read_fails_its_task_and_a_database_that_is_away_does_not(session, monkeypatch):
    def fail(error):
        def get(dag_id, session):
            raise error

        monkeypatch.setattr(SerializedDagModel, "get", get)

    fail(KeyError("dag"))
    with pytest.raises(RequestError, match="params or a conf that can't be read"):
        read_context(session, "dag", "run", {})
    fail(OperationalError("select", {}, Exception("away")))
    with pytest.raises(OperationalError):
        read_context(session, "dag", "run", {})


def test_a_conf_that_is_no_mapping_fails_its_task(session, define):
    define()
    session.execute(update(DagRun).values(conf=[1]))
    with pytest.raises(RequestError, match="params or a conf that can't be read"):
        read_context(session, "dag", "run", {})


def test_the_runs_of_a_dag_share_its_defaults(session, define, monkeypatch):
    define(n=SerializedParam(2))
    defaults = {}
    first = read_context(session, "dag", "run", defaults)
    monkeypatch.setattr(SerializedDagModel, "get", None)
    assert read_context(session, "dag", "run", defaults) == first
