"""How a task's user sees what the scheduler does: lines in the task's own log, and calls of Airflow's scheduler."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.sdk.log import init_log_file

from hetero_airflow.model.snapshot import Snapshot

log = logging.getLogger(__name__)

_ID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")

Note = Callable[[Any, str], None]
"""(key, text): writes into Airflow's audit log of the task."""


@dataclass(frozen=True, slots=True)
class SchedulerCallbacks:
    """What only the executor can do in Airflow's scheduler."""

    report: Callable[[Any, str, str | None], None]
    """(key, "success" or "failed", reason): tells the scheduler that a task has ended."""
    note: Note
    renew_token: Callable[[ExecuteTask, float | None], None]
    """(workload, seconds): gives the workload a token that is valid for at most that time; None: Airflow's time."""


def write_task_log(log_path: str | None, text: str, now: datetime, level: str = "info") -> None:
    """Append one line to a task's log, before the task runs, in the form that Airflow's log reader expects.

    A full disk costs the line, not the task.
    """
    if log_path is None:
        return
    line = {"timestamp": now.isoformat(), "level": level, "event": text, "logger": "hetero_airflow"}
    try:
        with init_log_file(log_path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        log.warning("Can't write to the task log %s: %s", log_path, error)


def with_task_names(text: str, snapshot: Snapshot, dag_id: str) -> str:
    """The text with ``dag.task (run)`` in place of each request id that the snapshot knows as one of this DAG.

    Requests of other DAGs are not named: the reader of a task's log may have no right to see those DAGs.

    >>> from hetero_airflow.testing import a_pending
    >>> id_ = "01a1fa1b-42d5-78df-9288-5b4d2de1f4f1"
    >>> snapshot = Snapshot(1, pending=(a_pending(id_, dag_id="etl", task_id="fit"),))
    >>> with_task_names(f"waits behind {id_}", snapshot, "etl")
    'waits behind etl.fit (run)'
    """
    ids = set(_ID.findall(text))
    if not ids:
        return text
    requests = (*snapshot.pending, *snapshot.holders.values())
    names: dict[str, str] = {}
    for request in requests:
        if request.id in ids and request.dag_id != dag_id:
            names[request.id] = "a task of another DAG"
        elif request.id in ids:
            index = f"[{request.map_index}]" if request.map_index >= 0 else ""
            run = f" ({request.run_id})" if request.run_id else ""
            names[request.id] = f"{request.dag_id}.{request.task_id}{index}{run}"
    return _ID.sub(lambda match: names.get(match[0], "another task"), text)
