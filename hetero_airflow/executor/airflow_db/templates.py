"""Renders device arguments that are Jinja templates, in the scheduler, before the task is placed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from sqlalchemy import select
from sqlalchemy.orm import Session

from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import DeviceRequest

_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


def render_request(session: Session, dag_id: str, run_id: str, arguments: Mapping[str, Any]) -> DeviceRequest:
    """The request from the arguments in this DAG run; for the names in templates see `run_context`.

    :raises RequestError: a template can't be rendered, or the rendered request is not valid
    """
    return render_arguments(arguments, _context(session, dag_id, run_id))


def render_arguments(arguments: Mapping[str, Any], context: Mapping[str, Any]) -> DeviceRequest:
    """The request from the arguments, with templates rendered in that context.

    :raises RequestError: a template can't be rendered, or the rendered request is not valid
    """
    rendered = {name: _render(name, value, context) for name, value in arguments.items()}
    return DeviceRequest.parse(rendered.pop("device", None), **rendered)


def _context(session: Session, dag_id: str, run_id: str) -> dict[str, Any]:
    run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if run is None:
        raise RequestError("device", run_id, found="no such DAG run", remedy="Trigger the DAG again")
    serialized = SerializedDagModel.get(dag_id, session=session)
    defaults = serialized.dag.params.dump() if serialized else {}
    return run_context(
        dag_id, run.run_id, run.logical_date, run.logical_date or run.run_after, defaults, run.conf or {}
    )


def run_context(
    dag_id: str,
    run_id: str,
    logical_date: datetime | None,
    date: datetime,
    defaults: Mapping[str, Any],
    conf: Mapping[str, Any],
) -> dict[str, Any]:
    """The context of templates: ``params`` (the DAG's defaults and the run's conf), ``dag_run``, ``ds`` and others."""
    return {
        "params": {**defaults, **conf},
        "dag_run": {"conf": conf, "run_id": run_id, "logical_date": logical_date, "dag_id": dag_id},
        "run_id": run_id,
        "logical_date": logical_date,
        "ds": date.strftime("%Y-%m-%d"),
    }


def _render(field: str, value: Any, context: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        try:
            return _ENVIRONMENT.from_string(value).render(context)
        except Exception as error:  # a template may raise anything; only this task fails
            raise RequestError(
                field, value, found=f"a template that fails: {error}", remedy="Use params, dag_run, run_id or ds"
            ) from error
    if isinstance(value, Mapping):
        return {name: _render(field, item, context) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(_render(field, item, context) for item in value)
    return value
