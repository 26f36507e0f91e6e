"""Edges as Airflow's own tables hold them; a database of two tables stands in for Airflow's."""

import logging

import pytest
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG, BaseOperator
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from sqlalchemy import StaticPool, create_engine
from sqlalchemy.orm import Session

from hetero_airflow.executor.context.dag_edges import DagEdges


def a_dag(*arrows: tuple[str, str], dag_id: str = "dag") -> DAG:
    with DAG(dag_id) as dag:
        tasks = {name: BaseOperator(task_id=name) for name in sorted({name for arrow in arrows for name in arrow})}
        for before, after in arrows:
            tasks[before].set_downstream(tasks[after])
    return dag


class Database:
    def __init__(self) -> None:
        self._engine = create_engine("sqlite://", poolclass=StaticPool)
        for model in (DagVersion, SerializedDagModel):
            model.__table__.create(self._engine)  # type: ignore[attr-defined]
        self.opened = 0

    def session(self) -> Session:
        self.opened += 1
        return Session(self._engine)

    def write(self, dag: DAG, number: int) -> None:
        with Session(self._engine) as session:
            version = DagVersion(dag_id=dag.dag_id, version_number=number)
            session.add(version)
            session.flush()
            row = SerializedDagModel(LazyDeserializedDAG.from_dag(dag))
            row.dag_version_id = version.id
            session.add(row)
            session.commit()


@pytest.fixture
def database() -> Database:
    return Database()


def test_the_newest_version_counts_and_is_read_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write(a_dag(("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")), 1)
    edges = DagEdges(database.session)
    first = edges.refresh({"dag", "absent"})
    assert first == {
        ("dag", "a"): (("dag", "b"), ("dag", "c")),
        ("dag", "b"): (("dag", "d"),),
        ("dag", "c"): (("dag", "d"),),
    }
    monkeypatch.setattr(SerializedDagModel, "dag", property(lambda row: pytest.fail("it is read again")))
    assert edges.refresh({"dag"}) is first
    monkeypatch.undo()
    database.write(a_dag(("a", "b")), 2)
    assert edges.refresh({"dag"}) == {("dag", "a"): (("dag", "b"),)}


def test_edges_of_dags_that_were_read_before_are_still_known(database: Database) -> None:
    database.write(a_dag(("a", "b"), dag_id="one"), 1)
    database.write(a_dag(("a", "b"), dag_id="two"), 1)
    edges = DagEdges(database.session)
    edges.refresh({"one"})
    assert set(edges.refresh({"two"})) == {("one", "a"), ("two", "a")}
    opened = database.opened
    assert set(edges.refresh(())) == {("one", "a"), ("two", "a")}
    assert database.opened == opened


def test_a_dag_that_can_not_be_read_stands_alone_and_is_named_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database.write(a_dag(("a", "b")), 1)

    def broken(row: SerializedDagModel) -> None:
        raise ValueError("no such operator")

    monkeypatch.setattr(SerializedDagModel, "dag", property(broken))
    edges = DagEdges(database.session)
    with caplog.at_level(logging.WARNING):
        assert edges.refresh({"dag"}) == {}
        assert edges.refresh({"dag"}) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "The edges of DAG dag can't be read, so its tasks count as independent: no such operator"
    ]
