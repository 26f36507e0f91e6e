"""Reads who owns the DAGs."""

from sqlalchemy import Engine, column, select, table

_DAGS = table("dag", column("dag_id"), column("owners"))


def read_dag_owners(engine: Engine) -> dict[str, str]:
    """DAG id → its owners, separated by commas, as Airflow's list of DAGs shows them."""
    with engine.connect() as connection:
        return {dag_id: owners for dag_id, owners in connection.execute(select(_DAGS)) if owners}
