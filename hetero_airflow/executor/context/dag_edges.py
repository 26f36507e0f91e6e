"""The edges of DAGs, from Airflow's serialized DAGs."""

import json
import logging
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import JSON, Connection, LargeBinary, column, select, table

from hetero_airflow.model.estimates import TaskName

log = logging.getLogger(__name__)

MAX_DAGS = 1000
"""So many DAGs are kept: the last used ones."""

Edges = Mapping[TaskName, tuple[TaskName, ...]]

_SERIALIZED = table(
    "serialized_dag",
    *map(column, ("dag_id", "dag_hash", "dag_version_id", "created_at")),
    column("data", JSON),
    column("data_compressed", LargeBinary),
)
_VERSIONS = table("dag_version", column("id"), column("version_number"))


class DagEdges:
    """Keeps the edges of DAGs, and reads them again if Airflow has a new version.

    :param connect: opens a connection to Airflow's database
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._connect = connect
        self._dags: dict[str, tuple[str, Edges]] = {}
        """DAG id → hash of its newest version, and its edges."""
        self._edges: Edges = {}

    def refresh(self, dag_ids: Collection[str]) -> Edges:
        """Task → its direct successors, in these DAGs and those of earlier calls; the same object if nothing changed.

        A DAG that can't be read has no edges, and is logged once for each version. Blocks on the database.
        """
        if not dag_ids:
            return self._edges
        is_new = False
        newest = (
            select(_SERIALIZED.c.dag_id, _SERIALIZED.c.dag_hash)
            .join(_VERSIONS, _SERIALIZED.c.dag_version_id == _VERSIONS.c.id)
            .where(_SERIALIZED.c.dag_id.in_(sorted(dag_ids)))
            .order_by(_VERSIONS.c.version_number)
        )
        with self._connect() as connection:
            hashes = {row.dag_id: row.dag_hash for row in connection.execute(newest)}
            for dag_id, dag_hash in hashes.items():
                cached = self._dags.pop(dag_id, ("", {}))
                if cached[0] != dag_hash:
                    cached, is_new = (dag_hash, _read(connection, dag_id, dag_hash)), True
                self._dags[dag_id] = cached
        while len(self._dags) > MAX_DAGS:
            del self._dags[next(iter(self._dags))]
            is_new = True
        if is_new:
            self._edges = {task: after for _, edges in self._dags.values() for task, after in edges.items()}
        return self._edges


def _read(connection: Connection, dag_id: str, dag_hash: str) -> Edges:
    versions = select(_SERIALIZED.c.data, _SERIALIZED.c.data_compressed).where(
        _SERIALIZED.c.dag_id == dag_id, _SERIALIZED.c.dag_hash == dag_hash
    )
    try:
        data, compressed = connection.execute(versions.limit(1)).one()
        return edges_of(dag_id, json.loads(zlib.decompress(compressed)) if data is None else data)
    except Exception as error:  # noqa: BLE001  Airflow may write its DAGs in another form
        log.warning("The edges of DAG %s can't be read, so its tasks count as independent: %r", dag_id, error)
        return {}


def edges_of(dag_id: str, data: Mapping[str, Any]) -> Edges:
    """The edges in a serialized DAG. A whole DAG is not made of it, which would take Airflow and much longer.

    >>> edges_of("d", {"dag": {"tasks": [{"__var": {"task_id": "a", "downstream_task_ids": ["b"]}}]}})
    {('d', 'a'): (('d', 'b'),)}
    """
    tasks = [task["__var"] for task in data["dag"]["tasks"]]
    return {
        (dag_id, task["task_id"]): tuple((dag_id, after) for after in sorted(task["downstream_task_ids"]))
        for task in tasks
        if task.get("downstream_task_ids")
    }
