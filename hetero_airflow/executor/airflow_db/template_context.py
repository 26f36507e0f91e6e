"""What device arguments that are templates may use: facts of the task's DAG run, from Airflow's database."""

from collections.abc import Mapping, MutableMapping
from datetime import UTC
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.definitions.notset import is_arg_set
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from hetero_airflow.contract.rendering import run_context
from hetero_airflow.errors import RequestError, shorten


def read_context(
    session: Session, dag_id: str, run_id: str, defaults: MutableMapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The context of templates in a DAG run; see `run_context`.

    :param defaults: DAG → the defaults of its params; gets those of this DAG if it does not have them
    :raises RequestError: there is no such run, or its DAG or its conf can't be read
    """
    try:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        if run is None:
            raise RequestError("device", run_id, found="no such DAG run", remedy="Trigger the DAG again")
        if dag_id not in defaults:
            defaults[dag_id] = _read_defaults(session, dag_id)
        logical_date = run.logical_date and run.logical_date.astimezone(UTC)
        date = logical_date or run.run_after.astimezone(UTC)
        return run_context(dag_id, run.run_id, logical_date, date, defaults[dag_id], run.conf or {})
    except (RequestError, SQLAlchemyError):
        raise
    except Exception as error:  # a row that another version wrote may raise anything; only this task fails
        found = f"params or a conf that can't be read: {shorten(str(error), 300)}"
        remedy = "Let the DAG processor read the DAG file again, and trigger the DAG again"
        raise RequestError("device", dag_id, found=found, remedy=remedy) from error


def _read_defaults(session: Session, dag_id: str) -> dict[str, Any]:
    """The defaults of the DAG's params, without a check against their schemas: a pattern in one may take hours."""
    serialized = SerializedDagModel.get(dag_id, session=session)
    params = serialized.dag.params if serialized else {}
    return {name: params[name] if is_arg_set(params[name]) else None for name in params}
