"""The edges of DAGs, from Airflow's serialized DAGs."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

from hetero_airflow.model.estimates import TaskName

log = logging.getLogger(__name__)

MAX_DAGS = 1000
"""So many DAGs are kept: the last used ones."""

Edges = Mapping[TaskName, tuple[TaskName, ...]]


class DagEdges:
    """Keeps the edges of DAGs, and reads them again if Airflow has a new version.

    :param make_session: opens a session on Airflow's database, not the scheduler's
    """

    def __init__(
        self, make_session: Callable[[], AbstractContextManager[Session]] = lambda: create_session(scoped=False)
    ) -> None:
        self._make_session = make_session
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
            select(SerializedDagModel.dag_id, SerializedDagModel.dag_hash)
            .join(DagVersion, SerializedDagModel.dag_version_id == DagVersion.id)
            .where(SerializedDagModel.dag_id.in_(sorted(dag_ids)))
            .order_by(DagVersion.version_number)
        )
        with self._make_session() as session:
            hashes = {row.dag_id: row.dag_hash for row in session.execute(newest)}
            for dag_id, dag_hash in hashes.items():
                cached = self._dags.pop(dag_id, ("", {}))
                if cached[0] != dag_hash:
                    cached, is_new = (dag_hash, _read(session, dag_id)), True
                self._dags[dag_id] = cached
        while len(self._dags) > MAX_DAGS:
            del self._dags[next(iter(self._dags))]
            is_new = True
        if is_new:
            self._edges = {task: after for _, edges in self._dags.values() for task, after in edges.items()}
        return self._edges


def _read(session: Session, dag_id: str) -> Edges:
    try:
        row = session.scalar(SerializedDagModel.latest_item_select_object(dag_id))
        tasks = {} if row is None else row.dag.task_dict
    except Exception as error:  # noqa: BLE001  a DAG may contain objects of any package
        log.warning("The edges of DAG %s can't be read, so its tasks count as independent: %s", dag_id, error)
        return {}
    return {
        (dag_id, task_id): tuple((dag_id, after) for after in sorted(task.downstream_task_ids))
        for task_id, task in tasks.items()
        if task.downstream_task_ids
    }
