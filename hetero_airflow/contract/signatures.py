"""Constructors of operators that take the keywords of a TypedDict."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from hetero_airflow.errors import HeteroError, RequestError
from hetero_airflow.model.arguments import DeviceArguments, Quota
from hetero_airflow.validation import did_you_mean

_Init = TypeVar("_Init", bound=Callable[..., None])


def takes(arguments: type) -> Callable[[_Init], _Init]:
    """Add the keys of a TypedDict to a constructor's signature, where Airflow reads what `default_args` may contain."""
    required = arguments.__required_keys__  # type: ignore[attr-defined]

    def with_keywords(init: _Init) -> _Init:
        signature = inspect.signature(init)
        *own, rest = signature.parameters.values()
        added = [
            inspect.Parameter(name, rest.KEYWORD_ONLY, default=rest.empty if name in required else None)
            for name in arguments.__annotations__
        ]
        init.__signature__ = signature.replace(parameters=[*own, *added, rest])  # type: ignore[attr-defined]
        return init

    return with_keywords


@contextmanager
def keywords_named(operator: type, given: Mapping[str, Any]) -> Iterator[None]:
    """Within the context, a constructor that refuses a keyword names the nearest one that the class takes.

    :raises RequestError: no constructor of the class knows one of the keywords
    """
    try:
        yield
    except TypeError as error:
        refusal = _unknown_keyword(operator, given)
        if refusal is None:
            raise
        raise refusal from error


@contextmanager
def task_named(task_id: object) -> Iterator[None]:
    """Within the context, the text of an error about a task begins with the task's id."""
    try:
        yield
    except HeteroError as error:
        error.args = (f"Task {task_id}: {error}",)
        raise


def check_keywords(operator: type, given: Mapping[str, Any]) -> None:
    """Refuse a keyword that no constructor of an operator's class knows.

    :raises RequestError: such a keyword
    """
    refusal = _unknown_keyword(operator, given)
    if refusal is not None:
        raise refusal


def _unknown_keyword(operator: type, given: Mapping[str, Any]) -> RequestError | None:
    inits = [parent.__init__ for parent in operator.mro()]  # type: ignore[misc]
    known = {name for init in inits for name in getattr(init, "_BaseOperatorMeta__param_names", ())}
    for name in sorted(set(given) - known):
        called = getattr(operator, "custom_operator_name", operator.__name__)
        hint = f'Did you mean quota={{"{name}": ...}}?' if name in Quota.__annotations__ else did_you_mean(name, known)
        arguments = f"The arguments for devices are {', '.join(DeviceArguments.__annotations__)}"
        found = f"no such argument of {called}"
        return RequestError(name, given[name], found=found, remedy=hint.strip() or arguments)
    return None
