"""The names of tasks in texts that people read. A decision names other requests by their ids, which mean nothing to
people, and a reader may not be allowed to see the DAGs of all of them."""

import re
from collections.abc import Collection, Iterable

from hetero_airflow.model.snapshot import PendingRequest, Snapshot

_ID = re.compile(r"(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])")
"""A UUID, but not as a part of a longer name, such as GPU-… of a device."""


def request_ids(text: str) -> set[str]:
    """What may be ids of requests in a text.

    >>> request_ids("waits behind 01a1fa1b-42d5-78df-9288-5b4d2de1f4f1, for GPU-02b2fa1b-42d5-78df-9288-5b4d2de1f4f2")
    {'01a1fa1b-42d5-78df-9288-5b4d2de1f4f1'}
    """
    return set(_ID.findall(text))


class TaskNames:
    """Puts ``dag.task (run)`` in place of the ids of these requests.

    >>> from hetero_airflow.testing import a_pending
    >>> id_ = "01a1fa1b-42d5-78df-9288-5b4d2de1f4f1"
    >>> names = TaskNames([a_pending(id_, dag_id="etl", task_id="fit")])
    >>> names.put_into(f"waits behind {id_}", readable={"etl"})
    'waits behind etl.fit (run)'
    >>> names.put_into(f"waits behind {id_}", readable={"other"})
    'waits behind a task of another DAG'
    """

    def __init__(self, requests: Iterable[PendingRequest]) -> None:
        self._requests = {request.id: request for request in requests}

    @classmethod
    def of(cls, snapshot: Snapshot) -> "TaskNames":
        """The names of all tasks that wait or hold devices."""
        return cls((*snapshot.pending, *snapshot.holders.values()))

    def put_into(self, text: str, readable: Collection[str] | None = None) -> str:
        """The text with names for ids.

        :param readable: the DAGs that the reader may see; None: all
        """
        return _ID.sub(lambda match: self._name(match[0], readable), text)

    def _name(self, id_: str, readable: Collection[str] | None) -> str:
        request = self._requests.get(id_)
        if request is None:
            return "another task"
        if readable is not None and request.dag_id not in readable:
            return "a task of another DAG"
        index = f"[{request.map_index}]" if request.map_index >= 0 else ""
        run = f" ({request.run_id})" if request.run_id else ""
        return f"{request.dag_id}.{request.task_id}{index}{run}"
