"""How a task's user sees what the scheduler does: lines in the task's own log, and calls of Airflow's scheduler."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.executors.workloads import ExecuteTask
from airflow.sdk.log import init_log_file

log = logging.getLogger(__name__)

Note = Callable[[Any, str], None]
"""(key, text): writes into Airflow's audit log of the task."""


@dataclass(frozen=True, slots=True)
class SchedulerCallbacks:
    """What only the executor can do in Airflow's scheduler."""

    report: Callable[[Any, Any, Any, bool], None]
    """(key, state, information, whether it also comes into Airflow's audit log): tells the scheduler of a task."""
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
