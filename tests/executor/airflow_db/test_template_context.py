"""What templates may use, from rows of Airflow on a real SQLite."""

from datetime import UTC
from types import SimpleNamespace

import pytest
from airflow.models import import_all_models
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.definitions.param import SerializedParam, SerializedParamsDict
from sqlalchemy import create_engine, insert, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from hetero_airflow.errors import RequestError
from hetero_airflow.executor.airflow_db.template_context import read_context
from hetero_airflow.testing import EPOCH


@pytest.fixture
def session():
    import_all_models()
    engine = create_engine("sqlite://")
    DagRun.__table__.create(engine)
    run = {
        "dag_id": "dag", "run_id": "run", "run_type": "manual", "state": "running", "run_after": EPOCH,
        "log_template_id": 1, "logical_date": EPOCH, "conf": {"kind": "a100"},
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(insert(DagRun.__table__).values(run))
    with Session(engine) as session:
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
