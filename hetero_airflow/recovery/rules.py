"""The recovery rules: what happens after each class of failure. One row a class; users can change each row.

The option ``[hetero] recovery_rules`` is a JSON object. Its rows and fields replace those of `DEFAULTS`::

    {"network": {"times": 2, "delay": "1m"}, "hung": {"action": "fail"}, "waiting": {"after": "2h"}}

==============  ====================================================================================================
field           meaning
==============  ====================================================================================================
action          ``requeue``: run again with the same try; ``retry``: use Airflow's retries; ``fail``: fail at once
times           how often a task is requeued between two clears; null for no limit
delay           time before the first requeue or retry; null leaves a retry to the task's own ``retry_delay``
backoff         factor by which each further delay grows: 1 to 10
max_delay       upper limit of the delay
then            ``retry`` or ``fail``: what happens when `times` is used up
memory          only device_memory and host_memory: ``x2`` asks for twice the memory that failed; null for the same
memory_limit    upper limit of the memory of one device, or of the host; null for the largest that exists
avoid           ``device`` or ``worker``: where the task does not run again while another can run it; null for no limit
==============  ====================================================================================================

The row ``waiting`` is not a failure: ``{"after": "30m", "action": "next_alternative"}`` lets a request that has waited
for 30 minutes try its next alternative first. ``{"action": "keep"}`` keeps the order as it is written.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError

from hetero_airflow.errors import RequestError, SettingsError, shorten
from hetero_airflow.recovery.failure import MAX_FAILURES, FailureClass
from hetero_airflow.settings import SECTION, default
from hetero_airflow.units import parse_bytes, parse_duration_s
from hetero_airflow.validation import json_object

MAX_TEXT = 20_000
"""Characters; the whole default table, written out, has a tenth of it."""


class Action(StrEnum):
    """What happens after a failure."""

    REQUEUE = "requeue"
    """The task waits for devices again, with the same try."""
    RETRY = "retry"
    """Airflow's own retries decide."""
    FAIL = "fail"
    """The task fails at once."""


class Avoid(StrEnum):
    """Where a task does not run again while another place can run it."""

    DEVICE = "device"
    """The devices that it had. If they are not in quarantine, their worker is avoided."""
    WORKER = "worker"
    """The worker that it ran on."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: what happens after failures of a class."""

    action: Action
    times: int | None = 3
    """None for no limit."""
    delay_s: float | None = None
    """Before the first requeue or retry. None: a requeue comes at once, a retry after the task's ``retry_delay``."""
    backoff: float = 2.0
    max_delay_s: float = 600.0
    then: Action = Action.RETRY
    """When `times` is used up."""
    memory: float | None = None
    """Factor."""
    memory_limit: int | None = None
    """Bytes."""
    avoid: Avoid | None = None

    def delay_after_s(self, earlier: int) -> float | None:
        """Seconds to wait after this number of earlier failures of the class. Not random, so it can be predicted.

        >>> rule = Rule(Action.REQUEUE, delay_s=10, backoff=2, max_delay_s=60)
        >>> [rule.delay_after_s(earlier) for earlier in range(4)]
        [10.0, 20.0, 40.0, 60.0]
        """
        if self.delay_s is None:
            return None
        return float(min(self.max_delay_s, self.delay_s * self.backoff ** min(earlier, 64)))


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole table."""

    rows: Mapping[FailureClass, Rule]
    waiting_s: float | None = 1800.0
    """After this time a waiting request tries its next alternative first; None: never."""

    def __getitem__(self, failure_class: FailureClass) -> Rule:
        return self.rows[failure_class]


DEFAULTS = Rules(
    MappingProxyType(
        {
            FailureClass.DEVICE_MEMORY: Rule(Action.REQUEUE, times=3, memory=2.0),
            FailureClass.HOST_MEMORY: Rule(Action.REQUEUE, times=3, memory=2.0),
            FailureClass.HARDWARE: Rule(Action.REQUEUE, times=5, avoid=Avoid.DEVICE),
            FailureClass.WORKER: Rule(Action.REQUEUE, times=3, avoid=Avoid.WORKER),
            FailureClass.NETWORK: Rule(Action.REQUEUE, times=5, delay_s=10.0, avoid=Avoid.WORKER),
            FailureClass.LOST_WORKER: Rule(Action.REQUEUE, times=5),
            FailureClass.PREEMPTED: Rule(Action.REQUEUE, times=None),
            FailureClass.HUNG: Rule(Action.REQUEUE, times=2),
            FailureClass.NO_START: Rule(Action.RETRY),
            FailureClass.USER_ERROR: Rule(Action.FAIL),
            FailureClass.CODE_ERROR: Rule(Action.RETRY),
            FailureClass.UNKNOWN: Rule(Action.RETRY),
        }
    )
)
"""The table without any option."""


def parse_rules(text: str) -> Rules:
    """`DEFAULTS`, changed by the option's text. An empty text changes nothing.

    :raises SettingsError: no JSON object, too long, or an unknown row, an unknown field, or a value out of range

    >>> rules = parse_rules('{"network": {"times": 2}, "waiting": {"action": "keep"}}')
    >>> rules[FailureClass.NETWORK].times, rules[FailureClass.NETWORK].delay_s, rules.waiting_s
    (2, 10.0, None)
    """
    if len(text) > MAX_TEXT:
        remedy = "Name only the rows that change"
        raise SettingsError(f"{_OPTION} of {len(text)} characters", found=f"more than {MAX_TEXT}", remedy=remedy)
    rules, waiting_s = dict(DEFAULTS.rows), DEFAULTS.waiting_s
    for name, row in json_object(text, _OPTION, _OBJECT).items():
        if name == "waiting":
            waiting = _read_row(name, row, _WAITING_FIELDS)
            waiting_s = None if waiting.get("action") == "keep" else waiting.get("after_s", waiting_s)
        elif name in tuple(FailureClass):
            failure_class = FailureClass(name)
            fields = _MEMORY_FIELDS if rules[failure_class].memory is not None else _FIELDS
            rules[failure_class] = replace(rules[failure_class], **_read_row(name, row, fields))
        else:
            remedy = f"Use {', '.join([*FailureClass, 'waiting'])}"
            raise SettingsError(f"{_OPTION}: {shorten(name)}", found="no such class of failure", remedy=remedy)
    return Rules(MappingProxyType(rules), waiting_s)


def configured_rules(conf: Any) -> Rules:
    """The rules of the option in a task's process.

    :param conf: Airflow's configuration there
    :raises SettingsError: they can't be read
    """
    return parse_rules(str(conf.get(SECTION, "recovery_rules", fallback=default("recovery_rules"))))


class _Field(NamedTuple):
    """One field of a row in the text."""

    attribute: str
    """Of `Rule`."""
    adapter: TypeAdapter[Any]
    remedy: str
    """For a wrong value."""


def _delay(value: object) -> float:
    is_zero = value in ("0s", "0") or (value == 0 and not isinstance(value, bool))
    return 0.0 if is_zero else parse_duration_s(value)


def _factor(value: object) -> float:
    match = re.fullmatch(r"x([0-9]{1,2}(?:\.[0-9]{1,3})?)", value) if isinstance(value, str) else None
    if match is None or not 1 < float(match[1]) <= 16:
        raise ValueError
    return float(match[1])


def _parsed_by(parse: Callable[[object], object], *, or_none: bool = False) -> TypeAdapter[Any]:
    def parse_or_none(value: object) -> object:
        return None if value is None and or_none else parse(value)

    return TypeAdapter(Annotated[Any, PlainValidator(parse_or_none)])


_DURATION = 'Write a duration such as "30s" or "10m", of at most 366d'
_TIMES = Annotated[int, Field(strict=True, ge=0, le=MAX_FAILURES)]
_BACKOFF = Annotated[float, Field(strict=True, ge=1, le=10)]
_THEN = Literal[Action.RETRY, Action.FAIL]

_FIELDS: Mapping[str, _Field] = {
    "action": _Field("action", TypeAdapter(Action), "Use requeue or retry or fail"),
    "times": _Field("times", TypeAdapter(_TIMES | None),
                    f"Give a whole number from 0 to {MAX_FAILURES}, or null for any number of times"),
    "delay": _Field("delay_s", _parsed_by(_delay, or_none=True), f"{_DURATION}, 0 for at once, or null"),
    "backoff": _Field("backoff", TypeAdapter(_BACKOFF), "Give a number from 1 to 10"),
    "max_delay": _Field("max_delay_s", _parsed_by(parse_duration_s), _DURATION),
    "then": _Field("then", TypeAdapter(_THEN), "Use retry or fail"),
    "avoid": _Field("avoid", TypeAdapter(Avoid | None), "Use device or worker, or null"),
}  # fmt: skip
_MEMORY_FIELDS: Mapping[str, _Field] = {
    **_FIELDS,
    "memory": _Field("memory", _parsed_by(_factor, or_none=True),
                     'Write a factor above 1 and up to 16, such as "x2", or null'),
    "memory_limit": _Field("memory_limit", _parsed_by(parse_bytes, or_none=True),
                           'Write a size such as "80GiB", or null'),
}  # fmt: skip
_WAITING_FIELDS: Mapping[str, _Field] = {
    "after": _Field("after_s", _parsed_by(parse_duration_s), _DURATION),
    "action": _Field("action", TypeAdapter(Literal["next_alternative", "keep"]), "Use next_alternative or keep"),
}

_OPTION = "[hetero] recovery_rules"
_OBJECT = 'Write it as {"network": {"action": "requeue", "times": 2}}'


def _read_row(name: str, row: object, fields: Mapping[str, _Field]) -> dict[str, Any]:
    """Attribute → value, of one row."""
    if not isinstance(row, dict):
        raise SettingsError(
            f"{_OPTION}: {name} = {shorten(row)}", found=f"a value of the type {type(row).__name__}", remedy=_OBJECT
        )
    values: dict[str, Any] = {}
    for key, value in row.items():
        asked = f"{_OPTION}: {name}.{shorten(key)[1:-1]} = {shorten(value)}"
        if key not in fields:
            raise SettingsError(asked, found="an unknown field", remedy=f"Use {', '.join(fields)}")
        try:
            values[fields[key].attribute] = fields[key].adapter.validate_python(value)
        except ValidationError as error:
            cause = error.errors(include_url=False)[0].get("ctx", {}).get("error")
            found = cause.found if isinstance(cause, RequestError) else _kind(value)
            raise SettingsError(asked, found=found, remedy=fields[key].remedy) from None
    return values


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "another text"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "a number out of range"
    return "null" if value is None else type(value).__name__
