"""Airflow's parse-time policy, entry point ``airflow.policy``.

Airflow imports this while it starts, so nothing here may import a module that imports airflow before the policy is
called.
"""

from __future__ import annotations

from typing import Any

from airflow.policies import hookimpl


@hookimpl
def task_policy(task: Any) -> None:
    """Complete mapped device tasks, and refuse a gang that is not mapped, when a DAG file is parsed.

    :raises RequestError: becomes the DAG file's import error
    """
    if not (task.is_mapped or hasattr(task, "is_one_training")):
        return
    from hetero_airflow.operators.mapped import complete_mapped_task

    complete_mapped_task(task)
