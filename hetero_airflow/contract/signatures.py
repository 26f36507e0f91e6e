"""Constructors of operators that take the keywords of a TypedDict."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hetero_airflow.errors import RequestError
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


def unknown_keyword(operator: type, given: Mapping[str, Any]) -> RequestError | None:
    """The error of the first keyword that no constructor of the class knows, with the nearest one; None if all do."""
    inits = [parent.__init__ for parent in operator.mro()]  # type: ignore[misc]
    known = {name for init in inits for name in getattr(init, "_BaseOperatorMeta__param_names", ())}
    for name in sorted(set(given) - known):
        remedy = did_you_mean(name, known).strip() or f"The arguments are in the documentation of {operator.__name__}"
        return RequestError(name, given[name], found=f"no such argument of {operator.__name__}", remedy=remedy)
    return None
