"""What to do about each class of failure: one row a class, each of which users can change.

The option ``[hetero] recovery_rules`` is a JSON object that is merged into `DEFAULTS`, row by row and field by field::

    {"network": {"times": 2, "delay": "1m"}, "hung": {"action": "fail"}, "waiting": {"after": "2h"}}

==============  ====================================================================================================
field           what it says
==============  ====================================================================================================
action          ``requeue``: again with the same try, no retry used up; ``retry``: Airflow's own; ``fail``: at once
times           how often it is requeued between two clears; null for any number
delay           before the first requeue or retry; null leaves a retry to the task's own ``retry_delay``
backoff         by how much each further delay is longer than the one before: 1 to 10
max_delay       no delay is longer
then            ``retry`` or ``fail``, once it was requeued as often as it may be
memory          of device_memory and host_memory: ``x2`` asks for twice what did not suffice; null for the same
memory_limit    never ask for more than this of one device, or of the host; null for the largest that there is
avoid           ``device`` or ``worker``: where it is not run again while another could; null for anywhere
==============  ====================================================================================================

The row ``waiting`` is no failure: ``{"after": "30m", "action": "next_alternative"}`` lets a request that has waited
for so long try its next alternative first; ``{"action": "keep"}`` leaves the order as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.recovery.rules_text import read_row, read_rows, unknown_row


class Action(StrEnum):
    """What is done about a failure."""

    REQUEUE = "requeue"
    """The task waits for devices again, with the same try."""
    RETRY = "retry"
    """Airflow's own retries decide."""
    FAIL = "fail"
    """The task fails at once."""


class Avoid(StrEnum):
    """Where a task is not run again while another could run it."""

    DEVICE = "device"
    """The devices it had: they are in quarantine, or else their worker is avoided."""
    WORKER = "worker"
    """The worker it was on."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: what is done about failures of a class."""

    action: Action
    times: int | None = 3
    """None for any number."""
    delay_s: float | None = None
    """Before the first requeue or retry; None: at once, or what the task's own ``retry_delay`` says."""
    backoff: float = 2.0
    max_delay_s: float = 600.0
    then: Action = Action.RETRY
    """Once `times` is used up."""
    memory: float | None = None
    """Factor."""
    memory_limit: int | None = None
    """Bytes."""
    avoid: Avoid | None = None

    def delay_after_s(self, earlier: int) -> float | None:
        """Seconds to wait after so many earlier failures of the class; without chance, so that it can be foretold.

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
    """A request that has waited for so long tries its next alternative first; None never."""

    def __getitem__(self, failure_class: FailureClass) -> Rule:
        return self.rows[failure_class]


DEFAULTS = Rules(
    MappingProxyType(
        {
            FailureClass.DEVICE_MEMORY: Rule(Action.REQUEUE, times=3, memory=2.0),
            FailureClass.HOST_MEMORY: Rule(Action.REQUEUE, times=3, memory=2.0),
            FailureClass.HARDWARE: Rule(Action.REQUEUE, times=5, avoid=Avoid.DEVICE),
            FailureClass.NETWORK: Rule(Action.REQUEUE, times=5, delay_s=10.0, avoid=Avoid.WORKER),
            FailureClass.LOST_WORKER: Rule(Action.REQUEUE, times=5),
            FailureClass.PREEMPTED: Rule(Action.REQUEUE, times=None),
            FailureClass.HUNG: Rule(Action.REQUEUE, times=2),
            FailureClass.USER_ERROR: Rule(Action.FAIL),
            FailureClass.UNKNOWN: Rule(Action.RETRY),
        }
    )
)
"""The table as it is without any option."""


def parse_rules(text: str, where: str = "[hetero] recovery_rules") -> Rules:
    """The table that the option's text makes of `DEFAULTS`; an empty text changes nothing.

    :param where: what errors call the text
    :raises SettingsError: no JSON object, or a row, field or value that is unknown or makes no sense

    >>> rules = parse_rules('{"network": {"times": 2}, "waiting": {"action": "keep"}}')
    >>> rules[FailureClass.NETWORK].times, rules[FailureClass.NETWORK].delay_s, rules.waiting_s
    (2, 10.0, None)
    """
    rows, waiting_s = dict(DEFAULTS.rows), DEFAULTS.waiting_s
    for name, fields in read_rows(text, where).items():
        if name == "waiting":
            waiting_s = _waiting(read_row(name, fields, _WAITING_FIELDS, where), waiting_s)
        elif name in tuple(FailureClass):
            failure_class = FailureClass(name)
            given = read_row(name, fields, _fields_of(failure_class), where)
            rows[failure_class] = replace(rows[failure_class], **_as_members(given))
        else:
            raise unknown_row(name, [*FailureClass, "waiting"], where)
    return Rules(MappingProxyType(rows), waiting_s)


_FIELDS = {
    "action": "action", "times": "times", "delay": "delay_s", "backoff": "backoff", "max_delay": "max_delay_s",
    "then": "then", "avoid": "avoid",
}  # fmt: skip
_MEMORY_FIELDS = {"memory": "memory", "memory_limit": "memory_limit"}
_WAITING_FIELDS = {"after": "after", "action": "waiting_action"}


def _fields_of(failure_class: FailureClass) -> Mapping[str, str]:
    is_memory = failure_class in (FailureClass.DEVICE_MEMORY, FailureClass.HOST_MEMORY)
    return {**_FIELDS, **_MEMORY_FIELDS} if is_memory else _FIELDS


def _as_members(given: Mapping[str, Any]) -> dict[str, Any]:
    members = {"action": Action, "then": Action, "avoid": Avoid}
    return {
        name: value if value is None or name not in members else members[name](value) for name, value in given.items()
    }


def _waiting(given: Mapping[str, Any], default_s: float | None) -> float | None:
    return None if given.get("waiting_action") == "keep" else given.get("after", default_s)
