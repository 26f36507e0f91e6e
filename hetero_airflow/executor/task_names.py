"""Task instances by name, where a text has their ids: for people."""

from __future__ import annotations

import re

from hetero_airflow.model.snapshot import Snapshot

_ID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")


def with_task_names(text: str, snapshot: Snapshot) -> str:
    """The text with ``dag.task (run)`` in place of each request's id that the snapshot knows.

    >>> from hetero_airflow.testing import a_pending
    >>> id_ = "01a1fa1b-42d5-78df-9288-5b4d2de1f4f1"
    >>> with_task_names(f"waits behind {id_}", Snapshot(1, pending=(a_pending(id_, dag_id="etl", task_id="fit"),)))
    'waits behind etl.fit (run)'
    """
    ids = set(_ID.findall(text))
    if not ids:
        return text
    known = {one.id: one for one in (*snapshot.pending, *snapshot.holders.values()) if one.id in ids}

    def name(match: re.Match[str]) -> str:
        one = known.get(match[0])
        if one is None:
            return match[0]
        index = f"[{one.map_index}]" if one.map_index >= 0 else ""
        return f"{one.dag_id}.{one.task_id}{index}" + (f" ({one.run_id})" if one.run_id else "")

    return _ID.sub(name, text)
