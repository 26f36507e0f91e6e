"""Invalid input: options that are JSON, the nearest valid name, and pydantic's errors in this package's words."""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pydantic import ValidationError

from hetero_airflow.errors import SettingsError, shorten

_PROBLEMS = {
    "bool_parsing": "no truth value",
    "bool_type": "no truth value",
    "decimal_parsing": "no number",
    "dict_type": "no mapping",
    "extra_forbidden": "an unknown field",
    "datetime_parsing": "no time",
    "datetime_type": "no time",
    "finite_number": "no finite number",
    "float_parsing": "no number",
    "float_type": "no number",
    "frozen_set_type": "no list",
    "greater_than": "a number that is not above {gt}",
    "greater_than_equal": "a number below {ge}",
    "int_from_float": "no whole number",
    "int_parsing": "no whole number",
    "int_parsing_size": "a number that is too large",
    "int_type": "no whole number",
    "json_invalid": "no JSON ({error})",
    "json_type": "no JSON text",
    "less_than": "a number that is not below {lt}",
    "less_than_equal": "a number above {le}",
    "list_type": "no list",
    "literal_error": "another value than {expected}",
    "enum": "another value than {expected}",
    "missing": "no value",
    "model_type": "no mapping",
    "string_pattern_mismatch": "a text of another form",
    "string_too_long": "a text of more than {max_length} characters",
    "string_too_short": "a text with fewer characters than {min_length}",
    "string_type": "no text",
    "timezone_aware": "a time without a zone",
    "too_long": "more than {max_length} items",
    "too_short": "fewer than {min_length} items",
    "tuple_type": "no list",
    "value_error": "{error}",
}
"""Pydantic's type of an error → what was found. Pydantic's own texts are for programmers: they name its types."""


def json_object(text: str, option: str, remedy: str) -> dict[str, Any]:
    """The JSON object in the text of an option; an empty text is an empty object.

    :param option: its name in errors
    :raises SettingsError: the text is no JSON object, has NaN or an infinity, or an object has a name twice

    >>> json_object('{"gpu": 2}', "[hetero] prices", "Write a JSON object")
    {'gpu': 2}
    """
    try:
        value = json.loads(text.strip() or "{}", object_pairs_hook=_without_duplicates, parse_constant=_refuse)
        problem = "" if isinstance(value, dict) else f"a value of the type {type(value).__name__}"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise SettingsError(f"{option} = {shorten(text)}", found=f"no JSON object ({problem})", remedy=remedy)
    return dict(value)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shorten(next(name for name in names if names.count(name) > 1), 40)} twice")
    return unique


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant}, which is no number")


def did_you_mean(word: str, valid_words: Iterable[str], cutoff: float = 0.6) -> str:
    """The question for the nearest known name, with a space after it; empty if no name is near.

    >>> did_you_mean("hihg", ["urgent", "high"])
    'Did you mean "high"? '
    """
    near = difflib.get_close_matches(word[:64].lower(), [*valid_words], n=1, cutoff=cutoff)
    return f'Did you mean "{near[0]}"? ' if near else ""


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The path of the first invalid field, and what was found there.

    >>> from pydantic import BaseModel
    >>> class Box(BaseModel):
    ...     size: int
    >>> try:
    ...     Box(size="big")
    ... except ValidationError as error:
    ...     first_problem(error)
    ('size', 'no whole number')
    """
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"])[:200]
    context: Mapping[str, Any] = first.get("ctx", {})
    return path, _PROBLEMS.get(first["type"], "a value that does not fit").format_map(context)[:300]
