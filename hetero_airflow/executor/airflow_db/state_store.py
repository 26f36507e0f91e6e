"""Airflow's task state store, as the scheduler's process reaches it: through the backend, whoever's it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow._shared.state import TaskScope
from airflow.state import get_state_backend
from airflow.utils.session import create_session


def write_state(key: Any, name: str, text: str) -> None:
    """Keep a JSON text under a name for the task of a key. A foreign backend may raise anything."""
    with create_session(scoped=False) as session:
        get_state_backend().set(_scope(key), name, text, session=session)


def read_states(keys: Iterable[Any], name: str) -> dict[Any, str]:
    """Key → JSON text, for those tasks that have one under that name. A foreign backend may raise anything."""
    backend, found = get_state_backend(), {}
    with create_session(scoped=False) as session:
        for key in keys:
            text = backend.get(_scope(key), name, session=session)
            if text is not None:
                found[key] = text
    return found


def _scope(key: Any) -> TaskScope:
    return TaskScope(key.dag_id, key.run_id, key.task_id, -1 if key.map_index is None else key.map_index)
