"""The recommended settings compared with those of an installation. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_airflow.contract.executor_names import COORDINATOR_CLASSPATH, COORDINATOR_NAME, hetero_executor_name
from hetero_airflow.executor.recommended_settings import Recommendation, recommendations

ReadOption = Callable[[str, str], str | None]
"""(section, option) → the installation's value, or None."""

_REPLACEABLE = frozenset({"", "LocalExecutor"})
"""Executors that HeteroExecutor replaces. Any other stays first in the list, as the default."""

_AT_LEAST = frozenset(
    {
        "execution_api_retries",
        "jwt_expiration_time",
        "max_failed_heartbeats",
        "task_queued_timeout",
        "worker_pods_creation_batch_size",
    }
)
"""Options for which a larger value is as good. For all other numbers a smaller one is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A recommendation with the installation's value, and the value to set, which is the same if that is as good."""

    recommendation: Recommendation
    current: str | None
    wanted: str

    @property
    def is_ok(self) -> bool:
        """Whether there is nothing to do."""
        return self.current == self.wanted


def recommended_settings(queue: str, read: ReadOption, engine: str = "local") -> tuple[Setting, ...]:
    """Each recommended setting. Additions of the installation, such as other coordinators, stay in the value."""
    coordinated = uses_our_coordinator(queue, read)
    return tuple(
        Setting(
            recommendation,
            current := read(recommendation.section, recommendation.option),
            _wanted(recommendation, current, coordinated),
        )
        for recommendation in recommendations(queue, engine)
    )


def uses_our_coordinator(queue: str, read: ReadOption) -> bool:
    """Whether tasks of the queue go through our coordinator, under any name."""
    coordinators = _json_object(read("sdk", "coordinators"))
    queues = _json_object(read("sdk", "queue_to_coordinator"))
    entry = (coordinators or {}).get(str((queues or {}).get(queue)))
    return isinstance(entry, Mapping) and entry.get("classpath") == COORDINATOR_CLASSPATH


def _wanted(recommendation: Recommendation, current: str | None, coordinated: bool) -> str:
    value = recommendation.value
    if recommendation.section == "sdk":
        if coordinated and current is not None:
            return current
        existing = _json_object(current) or {}
        ours = json.loads(value)
        merged = {**ours, **existing} if _has_our_coordinator(existing) else {**existing, **ours}
        return str(current) if merged == existing else json.dumps(merged)
    if recommendation.option == "executor":
        if hetero_executor_name(current or "") is not None:
            return str(current)
        return value if (current or "") in _REPLACEABLE else f"{current},{value}"
    number = _number(current)
    if recommendation.option in _AT_LEAST:
        return str(current) if number >= float(value) else value
    # All others are intervals, where a shorter one is as good, or -1 for no limit.
    return str(current) if 0 < number <= float(value) else value


def _has_our_coordinator(coordinators: Mapping[str, Any]) -> bool:
    entry = coordinators.get(COORDINATOR_NAME)
    return isinstance(entry, Mapping) and entry.get("classpath") == COORDINATOR_CLASSPATH


def _number(text: str | None) -> float:
    """The number, or 0 if the text is not a number."""
    try:
        return float(text or "")
    except ValueError:
        return 0.0


def _json_object(text: str | None) -> dict[str, Any] | None:
    """The JSON object, or None if the text is not one."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
