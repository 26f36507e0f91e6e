"""Lines in a task's own log from before the task runs, so that Airflow's UI shows why it waits."""

from __future__ import annotations

import json
import logging
from datetime import datetime

from airflow.sdk.log import init_log_file

log = logging.getLogger(__name__)


def write_task_log(log_path: str | None, text: str, now: datetime, level: str = "info") -> None:
    """Append one line in the form that Airflow's log reader expects; a full disk costs the line, not the task."""
    if log_path is None:
        return
    line = {"timestamp": now.isoformat(), "level": level, "event": text, "logger": "hetero_airflow"}
    try:
        with init_log_file(log_path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        log.warning("Can't write to the task log %s: %s", log_path, error)
