"""Reads the rows of the recovery rules from the text of an option; each value has a reader and a remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from hetero_airflow.errors import RequestError, SettingsError, shorten
from hetero_airflow.recovery.failure import MAX_FAILURES
from hetero_airflow.units import parse_bytes, parse_duration_s

MAX_TEXT = 20_000
"""Characters; the whole default table, written out, has a tenth of it."""

_FACTOR = re.compile(r"x([0-9]{1,2}(?:\.[0-9]{1,3})?)")


def read_rows(text: str, where: str) -> dict[str, Any]:
    """Row name → what the text says of it, not read yet.

    :raises SettingsError: no JSON object, too long, or the same name twice
    """
    if not text.strip():
        return {}
    if len(text) > MAX_TEXT:
        raise SettingsError(
            f"{where} of {len(text)} characters", found=f"more than {MAX_TEXT}", remedy="Name only the rows that change"
        )
    try:
        rows = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        found = str(error) if isinstance(error, _NotAllowed) else "no JSON"
        raise SettingsError(f"{where} = {shorten(text)}", found=found, remedy=_OBJECT) from None
    if not isinstance(rows, dict):
        raise SettingsError(f"{where} = {shorten(text)}", found=type(rows).__name__, remedy=_OBJECT)
    return rows


def read_row(name: str, given: object, fields: Mapping[str, str], where: str) -> dict[str, Any]:
    """Attribute → value, of one row.

    :param fields: field → reader's name, which is also that of the attribute
    :raises SettingsError: no object, an unknown field, or a value that can't be read
    """
    if not isinstance(given, dict):
        raise SettingsError(f"{where}: {name} = {shorten(given)}", found=type(given).__name__, remedy=_OBJECT)
    read: dict[str, Any] = {}
    for field, value in given.items():
        asked = f"{where}: {name}.{shorten(field)[1:-1]} = {shorten(value)}"
        if field not in fields:
            raise SettingsError(asked, found="an unknown field", remedy=f"Use {', '.join(fields)}")
        reader = _READERS[fields[field]]
        try:
            read[fields[field]] = reader.read(value)
        except (ValueError, OverflowError) as error:
            found = error.found if isinstance(error, RequestError) else _kind(value)
            raise SettingsError(asked, found=found, remedy=reader.remedy) from None
    return read


def unknown_row(name: str, known: list[str], where: str) -> SettingsError:
    """The error of a row whose name nobody knows."""
    return SettingsError(
        f"{where}: {shorten(name)}", found="no such class of failure", remedy=f"Use {', '.join(known)}"
    )


_OBJECT = 'Write it as {"network": {"action": "requeue", "times": 2}}'


class _NotAllowed(ValueError):
    pass


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _NotAllowed(f"{shorten(twice, 40)} twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise _NotAllowed(f"{name}, which is no number")


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "another text"
    return "a number out of range" if isinstance(value, (int, float)) and not isinstance(value, bool) else _type(value)


def _type(value: object) -> str:
    return "null" if value is None else type(value).__name__


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """How a value is read, and what to write instead; `read` raises ValueError."""

    read: Callable[[object], object]
    remedy: str


def _one_of(*words: str, or_none: bool = False) -> _FieldReader:
    def read(value: object) -> object:
        if value is None and or_none:
            return None
        if isinstance(value, str) and value in words:
            return value
        raise ValueError

    return _FieldReader(read, f"Use {' or '.join(words)}" + (", or null" if or_none else ""))


def _times(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_FAILURES:
        return value
    raise ValueError


def _delay(value: object) -> float | None:
    if value is None:
        return None
    return 0.0 if value in ("0s", "0") or (_is_number(value) and value == 0) else parse_duration_s(value, "delay")


def _backoff(value: object) -> float:
    if isinstance(value, (int, float)) and _is_number(value) and 1 <= value <= 10:
        return float(value)
    raise ValueError


def _factor(value: object) -> float | None:
    if value is None:
        return None
    found = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 1 < float(found[1]) <= 16:
        raise ValueError
    return float(found[1])


def _limit(value: object) -> int | None:
    return None if value is None else parse_bytes(value, "memory_limit")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_DURATION = 'Write a duration such as "30s" or "10m", of at most 366d'
_READERS: Mapping[str, _FieldReader] = {
    "action": _one_of("requeue", "retry", "fail"),
    "times": _FieldReader(_times, f"Give a whole number from 0 to {MAX_FAILURES}, or null for any number of times"),
    "delay_s": _FieldReader(_delay, f"{_DURATION}, 0 for at once, or null"),
    "backoff": _FieldReader(_backoff, "Give a number from 1 to 10"),
    "max_delay_s": _FieldReader(lambda value: parse_duration_s(value, "max_delay"), _DURATION),
    "then": _one_of("retry", "fail"),
    "memory": _FieldReader(_factor, 'Write a factor above 1 and up to 16, such as "x2", or null'),
    "memory_limit": _FieldReader(_limit, 'Write a size such as "80GiB", or null'),
    "avoid": _one_of("device", "worker", or_none=True),
    "after": _FieldReader(lambda value: parse_duration_s(value, "after"), _DURATION),
    "waiting_action": _one_of("next_alternative", "keep"),
}
