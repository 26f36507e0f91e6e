"""Converts decisions and other values to the JSON of the tables, and back. Pure; no pickle anywhere."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.plan import Account, Decision, Place, Reason, Refuse, Wait
from hetero_airflow.model.run import MAX_TRANSITIONS, Transition
from hetero_airflow.store.inventory import DeviceRecord

ACCOUNT: TypeAdapter[Account] = TypeAdapter(Account)
REASON: TypeAdapter[Reason] = TypeAdapter(Reason)
READINGS: TypeAdapter[tuple[Telemetry, ...]] = TypeAdapter(tuple[Telemetry, ...])
SERVED: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])
CORES: TypeAdapter[tuple[int, ...]] = TypeAdapter(tuple[int, ...])
TRANSITIONS: TypeAdapter[tuple[Transition, ...]] = TypeAdapter(tuple[Transition, ...])
LEASES: TypeAdapter[frozenset[str]] = TypeAdapter(frozenset[str])

REQUEST_COLUMNS = (
    "dag_id", "run_id", "task_id", "map_index", "try_number", "submitted_at", "weight", "gang_size", "interruptions",
)  # fmt: skip
"""The columns of `hetero_request` with the name and the value of a field of `PendingRequest`."""

_OUTCOMES: dict[type[Decision], str] = {Place: "place", Wait: "wait", Refuse: "refuse"}


def decision_columns(decision: Decision) -> dict[str, Any]:
    """The decision's columns; ``reason`` and ``account`` are JSON texts."""
    reason = None if isinstance(decision, Place) else REASON.dump_json(decision.reason, exclude_none=True).decode()
    return {
        "request_id": decision.request_id,
        "outcome": _OUTCOMES[type(decision)],
        "position": decision.position if isinstance(decision, Wait) else None,
        "reason": reason,
        "nearest": decision.nearest if isinstance(decision, Refuse) else None,
        "account": ACCOUNT.dump_json(decision.account, exclude_none=True).decode(),
    }


def decision_json(columns: Mapping[str, Any], decided_at: datetime) -> dict[str, Any]:
    """The decision in a `RequestHistory`: JSON values only."""
    return {
        "decided_at": decided_at.isoformat(),
        "outcome": columns["outcome"],
        "position": columns["position"],
        "reason": None if columns["reason"] is None else json.loads(columns["reason"]),
        "nearest": columns["nearest"],
        "account": json.loads(columns["account"]),
    }


def digest(*texts: object) -> str:
    """SHA-256 of the texts, 64 hexadecimal digits."""
    return hashlib.sha256("\0".join(map(str, texts)).encode(errors="replace")).hexdigest()


def clean_cause(cause: str) -> str:
    """The cause as every database accepts it: no NUL, no half characters, at most 2,000 characters.

    >>> clean_cause("killed\\x00")
    'killed\\ufffd'
    """
    return cause[:2000].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def device_columns(record: DeviceRecord, position: int) -> dict[str, Any]:
    """The columns of a device, without its keys."""
    return {
        "position": position,
        "inventory": record.device.model_dump_json(exclude_defaults=True),
        "kind": record.device.kind,
        "leasable": record.device.leasable,
        "is_vanished": record.is_vanished,
        "physical_id": record.physical_id,
        "reported_since": record.reported_since,
        "offered_milli": record.device.capacity_milli,
        "offered_memory_bytes": record.offered_memory_bytes,
        "capacity_milli": record.capacity_milli,
        "capacity_memory_bytes": record.capacity_memory_bytes,
        "used_milli": record.used_milli,
        "used_memory_bytes": record.used_memory_bytes,
    }


def merged_transitions(known: Iterable[Transition], newer: Iterable[Transition]) -> tuple[Transition, ...]:
    """The newest of both, in the order of their times: several schedulers may have had the request."""
    clean = [transition._replace(text=clean_cause(transition.text)) for transition in newer]
    return tuple(sorted([*known, *clean], key=lambda transition: transition.at)[-MAX_TRANSITIONS:])
