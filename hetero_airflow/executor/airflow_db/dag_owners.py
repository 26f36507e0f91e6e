"""Reads who owns the DAGs."""

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select


def read_dag_owners() -> dict[str, str]:
    """DAG id → its owners, separated by commas, as Airflow's list of DAGs shows them."""
    with create_session() as session:
        rows = session.execute(select(DagModel.dag_id, DagModel.owners))
        return {dag_id: owners for dag_id, owners in rows if owners}
