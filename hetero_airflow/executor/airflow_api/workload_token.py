"""The token with which a task's supervisor starts it through Airflow's Execution API."""

from typing import Any

from airflow.configuration import conf
from airflow.executors.workloads import ExecuteTask


def renew_token(generator: Any, workload: ExecuteTask, valid_s: float | None) -> None:
    """Give a task a new token. The first one may have expired in the queue, or a shorter life is wanted.

    :param generator: Airflow's generator of tokens
    :param valid_s: for how long it is valid; None or more than Airflow's time: Airflow's time
    """
    claims = {"sub": str(workload.ti.id), "scope": "workload"}
    limit_s = conf.getfloat("scheduler", "task_queued_timeout")
    workload.token = generator.generate(claims, valid_for=min(valid_s or limit_s, limit_s))
