"""The recommended settings beside an installation's own: what is good enough, and what to set. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_airflow.contract.selection import COORDINATOR_CLASSPATHS, COORDINATOR_NAME, hetero_executor_name
from hetero_airflow.executor.recommended_settings import Recommendation, recommendations

ReadOption = Callable[[str, str], str | None]
"""(section, option) → the text that the installation has, None for none."""

_REPLACEABLE = frozenset({"", "LocalExecutor"})
"""Executors that HeteroExecutor does the work of; others stay first in the list, as the default."""


_AT_LEAST = frozenset({"execution_api_retries", "worker_pods_creation_batch_size", "task_queued_timeout"})
"""Numbers of which more is as good; of all others less is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A recommendation, what the installation has, and what it should have: its own value where that is as good."""

    recommendation: Recommendation
    current: str | None
    wanted: str

    @property
    def is_well(self) -> bool:
        """Whether nothing is to be done."""
        return self.current == self.wanted


def recommended_settings(queue: str, read: ReadOption, engine: str = "local") -> tuple[Setting, ...]:
    """Each recommended setting. What the installation has of its own beside it, such as other coordinators, stays."""
    coordinated = uses_our_coordinator(queue, read)
    return tuple(
        Setting(each, current := read(each.section, each.option), _wanted(each, current, coordinated))
        for each in recommendations(queue, engine)
    )


def uses_our_coordinator(queue: str, read: ReadOption) -> bool:
    """Whether tasks of the queue go through our coordinator, whatever its name is here."""
    coordinators = _json_object(read("sdk", "coordinators"))
    queues = _json_object(read("sdk", "queue_to_coordinator"))
    entry = (coordinators or {}).get(str((queues or {}).get(queue)))
    return isinstance(entry, Mapping) and entry.get("classpath") in COORDINATOR_CLASSPATHS


def _wanted(recommendation: Recommendation, current: str | None, coordinated: bool) -> str:
    value = recommendation.value
    if recommendation.section == "sdk":
        if coordinated and current is not None:
            return current
        own = _json_object(current) or {}
        merged = {**json.loads(value), **own} if _has_our_coordinator(own) else {**own, **json.loads(value)}
        return str(current) if merged == own else json.dumps(merged)
    if recommendation.option == "executor":
        if hetero_executor_name(current or "") is not None:
            return str(current)
        return value if (current or "") in _REPLACEABLE else f"{current},{value}"
    number = _number(current)
    if recommendation.option in _AT_LEAST:
        return str(current) if number >= float(value) else value
    # All others are intervals, of which shorter is as good, or -1 for no limit.
    return str(current) if 0 < number <= float(value) else value


def _has_our_coordinator(coordinators: Mapping[str, Any]) -> bool:
    entry = coordinators.get(COORDINATOR_NAME)
    return isinstance(entry, Mapping) and entry.get("classpath") in COORDINATOR_CLASSPATHS


def _number(text: str | None) -> float:
    """0 where the text is none."""
    try:
        return float(text or "")
    except ValueError:
        return 0.0


def _json_object(text: str | None) -> dict[str, Any] | None:
    """The object, or None where the text is none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
