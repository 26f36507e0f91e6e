"""Edges as Airflow's own tables hold them."""

import logging
from collections.abc import Iterator

import pytest
from airflow.models import serialized_dag
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator, TaskGroup
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from sqlalchemy import Connection, Engine, NullPool, StaticPool, Table, create_engine, text
from sqlalchemy.orm import Session

from hetero_airflow.executor.context import dag_edges
from hetero_airflow.executor.context.dag_edges import DagEdges


def a_dag(*arrows: tuple[str, str], dag_id: str = "dag") -> DAG:
    with DAG(dag_id) as dag:
        tasks = {name: BaseOperator(task_id=name) for name in sorted({name for arrow in arrows for name in arrow})}
        for before, after in arrows:
            tasks[before].set_downstream(tasks[after])
    return dag


def parents(table: Table) -> list[Table]:
    """The table and all that its foreign keys lead to."""
    found, left = [table], [table]
    while left:
        new = {key.column.table for key in left.pop().foreign_keys} - {*found}
        found += new
        left += new
    return found


class Database:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        tables = parents(SerializedDagModel.__table__)
        SerializedDagModel.metadata.create_all(engine, tables=tables)
        self.opened = 0

    def connect(self) -> Connection:
        self.opened += 1
        return self._engine.connect()

    def write(self, dag: DAG, number: int) -> None:
        with Session(self._engine) as session:
            if self._engine.dialect.name == "postgresql":
                session.execute(text("SET session_replication_role = replica"))  # rows may lack their parents
            version = DagVersion(dag_id=dag.dag_id, version_number=number)
            session.add(version)
            session.flush()
            row = SerializedDagModel(LazyDeserializedDAG.from_dag(dag))
            row.dag_version_id = version.id
            session.add(row)
            session.commit()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "sqlite":
        engine = create_engine("sqlite://", poolclass=StaticPool)
    else:
        engine = create_engine(request.getfixturevalue("make_postgres_database")(), poolclass=NullPool)
    yield Database(engine)
    engine.dispose()


def test_the_newest_version_counts_and_is_read_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write(a_dag(("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")), 1)
    edges = DagEdges(database.connect)
    first = edges.refresh({"dag", "absent"})
    assert first == {
        ("dag", "a"): (("dag", "b"), ("dag", "c")),
        ("dag", "b"): (("dag", "d"),),
        ("dag", "c"): (("dag", "d"),),
    }
    monkeypatch.setattr(dag_edges, "edges_of", lambda *_: pytest.fail("it is read again"))
    assert edges.refresh({"dag"}) is first
    monkeypatch.undo()
    database.write(a_dag(("a", "b")), 2)
    assert edges.refresh({"dag"}) == {("dag", "a"): (("dag", "b"),)}


def test_edges_of_dags_that_were_read_before_are_still_known(database: Database) -> None:
    database.write(a_dag(("a", "b"), dag_id="one"), 1)
    database.write(a_dag(("a", "b"), dag_id="two"), 1)
    edges = DagEdges(database.connect)
    edges.refresh({"one"})
    assert set(edges.refresh({"two"})) == {("one", "a"), ("two", "a")}
    opened = database.opened
    assert set(edges.refresh(())) == {("one", "a"), ("two", "a")}
    assert database.opened == opened


def test_a_compressed_dag_is_read_and_so_are_task_groups_and_mapped_tasks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialized_dag, "_COMPRESS_SERIALIZED_DAGS", True)
    with DAG("dag") as dag:
        first = BaseOperator(task_id="first")
        with TaskGroup("group"):
            mapped = BashOperator.partial(task_id="mapped").expand(bash_command=["a", "b"])
            inner = BaseOperator(task_id="inner")
        first >> [mapped, inner]
    database.write(dag, 1)
    edges = DagEdges(database.connect).refresh({"dag"})
    assert edges == {("dag", "first"): (("dag", "group.inner"), ("dag", "group.mapped"))}


def test_a_dag_that_can_not_be_read_stands_alone_and_is_named_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database.write(a_dag(("a", "b")), 1)
    monkeypatch.setattr(dag_edges, "edges_of", lambda _, data: data["of another version"])
    edges = DagEdges(database.connect)
    with caplog.at_level(logging.WARNING):
        assert edges.refresh({"dag"}) == {}
        assert edges.refresh({"dag"}) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "The edges of DAG dag can't be read, so its tasks count as independent: KeyError('of another version')"
    ]
