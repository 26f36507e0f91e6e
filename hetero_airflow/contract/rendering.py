"""Renders device arguments that are Jinja templates. Without limits on time and memory; see `render_process`."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.sandbox import SandboxedEnvironment

from hetero_airflow.contract.envelope import texts_in
from hetero_airflow.errors import RequestError, shorten
from hetero_airflow.model.request import DeviceRequest

MAX_CHARACTERS = 10_000
"""The length of one rendered text."""

_SET = "set:"
"""The key of a mapping that stands for a set in JSON."""

CONTEXT = {"params", "dag_run", "run_id", "logical_date", "ds"}
"""What templates may use; see `run_context`."""

_OWN_NAMES = {"loop", "self", "caller", "varargs", "kwargs"}
"""What Jinja itself sets in loops, blocks and macros."""

_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


def check_templates(arguments: Mapping[str, Any]) -> None:
    """Refuse what is no template, when the DAG file is parsed.

    :raises RequestError: a template has a mistake, or uses a filter or a name that does not exist
    """
    for name, value in arguments.items():
        for text in texts_in(value):
            if problem := _problem(text):
                remedy = 'Correct the template, such as "{{ params.device }}"'
                raise RequestError(name, text, found=f"a template with a mistake: {problem}", remedy=remedy)


@lru_cache(maxsize=1024)
def _problem(template: str) -> str:
    """What is wrong with a template; empty if nothing is found. Computes nothing of it: Jinja's compiler would."""
    try:
        tree = _ENVIRONMENT.parse(template)
        filters = {node.name for node in tree.find_all(nodes.Filter)}
        names = {(node.name, node.ctx) for node in tree.find_all(nodes.Name)}
        names |= {(node.name, "store") for node in tree.find_all(nodes.Macro)}
    except TemplateSyntaxError as error:
        return str(error.message).rstrip(".")
    except RecursionError:  # it is nested deeply: the process that renders it has limits
        return ""
    if unknown := filters - _ENVIRONMENT.filters.keys():
        return f"no filter named {min(unknown)!r}"
    set_here = {name for name, use in names if use != "load"} | _OWN_NAMES | CONTEXT | _ENVIRONMENT.globals.keys()
    unset = {name for name, _ in names} - set_here
    return f"{min(unset)!r} has no value; {', '.join(sorted(CONTEXT))} have one" if unset else ""


def render_arguments(arguments: Mapping[str, Any], context: Mapping[str, Any]) -> DeviceRequest:
    """The request from the arguments, with templates rendered in that context.

    :raises RequestError: a template can't be rendered, or the rendered request is not valid
    """
    rendered = {name: _render(name, value, context) for name, value in arguments.items()}
    return DeviceRequest.parse(rendered.pop("device", None), **rendered)


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


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    """Device arguments as JSON. A set stays one: the order of its alternatives has no meaning.

    :raises TypeError: a value that JSON does not have
    :raises ValueError: a mapping contains itself
    :raises RecursionError: they are nested too deeply
    """
    return json.dumps(dict(arguments), default=_as_json)


def load_arguments(text: str) -> dict[str, Any]:
    """The arguments from `dump_arguments`."""
    arguments: dict[str, Any] = json.loads(text, object_hook=lambda value: set(value[_SET]) if _SET in value else value)
    return arguments


def dump_context(context: Mapping[str, Any]) -> str:
    """A context of `run_context` as JSON.

    :raises TypeError: params or a conf have a value that JSON does not have
    :raises ValueError: a mapping contains itself
    :raises RecursionError: they are nested too deeply
    """
    return json.dumps(context, default=_as_json)


def load_context(text: str) -> dict[str, Any]:
    """The context from `dump_context`."""
    context: dict[str, Any] = json.loads(text)
    if context["logical_date"] is not None:
        context["logical_date"] = context["dag_run"]["logical_date"] = datetime.fromisoformat(context["logical_date"])
    return context


def _as_json(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (set, frozenset)):
        return {_SET: list(value)}
    raise TypeError(f"a value of type {type(value).__name__}")


def _render(field: str, value: Any, context: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return _render_text(field, value, context)
    if isinstance(value, Mapping):
        return {name: _render(field, item, context) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(_render(field, item, context) for item in value)
    return value


def _render_text(field: str, template: str, context: Mapping[str, Any]) -> str:
    try:
        text = _ENVIRONMENT.from_string(template).render(context)
    except MemoryError:
        raise  # its limit is that of the process
    except Exception as error:  # a template may raise anything; only this task fails
        raise RequestError(
            field,
            template,
            found=f"a template that fails: {str(error)[:500].rstrip('.') or type(error).__name__}",
            remedy="Use params, dag_run, run_id, ds or logical_date",
        ) from error
    if len(text) > MAX_CHARACTERS:
        raise RequestError(
            field,
            template,
            found=f"a template that makes {len(text)} characters: {shorten(text, 40)}",
            remedy=f"Let it make at most {MAX_CHARACTERS}",
        )
    return text
