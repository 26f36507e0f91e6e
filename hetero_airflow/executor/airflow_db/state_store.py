"""Airflow's task state store in the scheduler's process, through the configured backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow._shared.state import BaseStoreBackend, TaskScope
from airflow.providers.common.compat.sdk import AirflowTaskTimeout, timeout
from airflow.state import get_state_backend
from airflow.state.metastore import MetastoreBackend
from airflow.utils.session import create_session

CALL_LIMIT_S = 3.0
"""Most time that a backend other than Airflow's database may take for one call."""


def write_state(key: Any, name: str, text: str) -> None:
    """Store a JSON text under a name for the task of a key. The backend may raise any exception."""
    backend = get_state_backend()
    with _limited(backend), create_session(scoped=False) as session:
        backend.set(_scope(key), name, text, session=session)


def read_states(keys: Iterable[Any], name: str) -> dict[Any, str]:
    """Key → JSON text under that name, for the tasks that have one. The backend may raise any exception."""
    backend = get_state_backend()
    with _limited(backend), create_session(scoped=False) as session:
        texts = {key: backend.get(_scope(key), name, session=session) for key in keys}
    return {key: text for key, text in texts.items() if text is not None}


@contextmanager
def _limited(backend: BaseStoreBackend) -> Iterator[None]:
    """Limit a call to a backend that may be a service; Airflow's loop waits for its own database anyway.

    :raises TimeoutError: where Airflow's time limit raises what is no `Exception`
    """
    if isinstance(backend, MetastoreBackend):
        yield
        return
    try:
        with timeout(seconds=CALL_LIMIT_S):
            yield
    except AirflowTaskTimeout as error:
        raise TimeoutError(f"the state backend did not answer within {CALL_LIMIT_S:g} s") from error


def _scope(key: Any) -> TaskScope:
    return TaskScope(key.dag_id, key.run_id, key.task_id, -1 if key.map_index is None else key.map_index)
