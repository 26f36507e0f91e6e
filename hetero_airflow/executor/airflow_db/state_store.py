"""Airflow's task state store in the scheduler's process, through the configured backend."""

import logging
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any

from airflow._shared.state import TaskScope
from airflow.state import get_state_backend
from airflow.state.metastore import MetastoreBackend
from airflow.utils.session import create_session

from hetero_airflow.engines.circuit_breaker import ServiceCalls, make_call

log = logging.getLogger(__name__)

CALL_LIMIT_S = 3.0
"""Most time that a backend other than Airflow's database may take for one call."""

_EFFECT = "Running tasks go on. What is to be written is kept; what is to be read is unknown."

_NO_RUN = "No DagRun found"
"""What Airflow's database says of a run that was deleted."""


class StateCalls(ServiceCalls):
    """Calls of `write_state` and `read_states` beside the caller, if the backend may be a service.

    Those to Airflow's database are made at once: Airflow's loop waits for it anyway.
    """

    def __init__(self) -> None:
        super().__init__("The task state backend", _EFFECT, CALL_LIMIT_S)

    def ask(self, id: Hashable, make: Callable[[], Any], patience_s: float = 0.0) -> Future[Any]:
        """The answer to a call; see `ServiceCalls.ask`."""
        return make_call(make) if _is_database() else super().ask(id, make, patience_s)

    def keep(self, id: Hashable, make: Callable[[], Any], loss: str) -> None:
        """Make a call when the backend answers; see `ServiceCalls.keep`."""
        if not _is_database():
            super().keep(id, make, loss)
        elif (error := make_call(make).exception()) is not None:
            is_deleted = _NO_RUN in str(error)  # as `airflow hetero doctor` deletes its run
            log.log(logging.DEBUG if is_deleted else logging.WARNING, "%s: %s", loss, error)


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


def _is_database() -> bool:
    """Whether the backend is Airflow's database. One that can't be loaded fails when it is called."""
    return not (backend := make_call(get_state_backend)).exception() and isinstance(backend.result(), MetastoreBackend)


def _scope(key: Any) -> TaskScope:
    return TaskScope(key.dag_id, key.run_id, key.task_id, -1 if key.map_index is None else key.map_index)
