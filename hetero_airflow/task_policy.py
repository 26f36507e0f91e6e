"""Airflow's parse-time policy, entry point ``airflow.policy``.

Airflow imports this while it starts, so nothing here may import a module that imports airflow before the policy is
called.
"""

from typing import Any

from airflow.policies import hookimpl


@hookimpl
def task_policy(task: Any) -> None:
    """Complete mapped device tasks, and refuse what can't work, when a DAG file is parsed.

    That is a gang that is not mapped, and a device in the ``executor_config`` of a plain operator.

    :raises RequestError: becomes the DAG file's import error
    """
    config = (task.partial_kwargs if task.is_mapped else vars(task)).get("executor_config")
    if isinstance(config, dict) and "device" in config:
        from hetero_airflow.operators.mapped import refuse_misplaced_request

        refuse_misplaced_request(task, config)
    if not (task.is_mapped or hasattr(task, "is_one_training")):
        return
    from hetero_airflow.operators.mapped import complete_mapped_task

    complete_mapped_task(task)
