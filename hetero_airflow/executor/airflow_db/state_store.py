"""Airflow's task state store in the scheduler's process, through the configured backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow._shared.state import TaskScope
from airflow.state import get_state_backend
from airflow.utils.session import create_session


def write_state(key: Any, name: str, text: str) -> None:
    """Store a JSON text under a name for the task of a key. The backend may raise any exception."""
    with create_session(scoped=False) as session:
        get_state_backend().set(_scope(key), name, text, session=session)


def read_states(keys: Iterable[Any], name: str) -> dict[Any, str]:
    """Key → JSON text under that name, for the tasks that have one. The backend may raise any exception."""
    backend = get_state_backend()
    with create_session(scoped=False) as session:
        texts = {key: backend.get(_scope(key), name, session=session) for key in keys}
    return {key: text for key, text in texts.items() if text is not None}


def _scope(key: Any) -> TaskScope:
    return TaskScope(key.dag_id, key.run_id, key.task_id, -1 if key.map_index is None else key.map_index)
