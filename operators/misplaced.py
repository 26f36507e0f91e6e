"""Refuses a request that stands where nothing reads it, which is what people try first."""

import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk.configuration import conf

from hetero_airflow.contract.executor_names import EXECUTOR_CLASSPATH, hetero_executor_name
from hetero_airflow.errors import RequestError

_OPERATORS = {
    "PythonOperator": "DevicePythonOperator(device=...) or @task.device(device=...)",
    "_PythonDecoratedOperator": "@task.device(device=...)",
    "BashOperator": "DeviceBashOperator(device=...)",
    "_BashDecoratedOperator": "DeviceBashOperator(device=...)",
    "KubernetesPodOperator": "DevicePodOperator(device=...)",
}
"""Airflow's operator → ours for it."""


def refuse_misplaced_request(task: Any, config: Mapping[str, Any]) -> None:
    """Refuse a device in the ``executor_config`` of a task that HeteroExecutor would run without one.

    :param task: a task or a mapped task, of any operator
    :param config: the task's ``executor_config``, which has a ``device``
    :raises RequestError: the task would run on this package's executor
    """
    operator = task.operator_class if task.is_mapped else type(task)
    if hasattr(operator, "is_one_training"):
        return  # an operator of ours, which asks for its device elsewhere
    core_executor = conf.get("core", "executor")
    ours = hetero_executor_name(core_executor)
    asked = task.partial_kwargs.get("executor") if task.is_mapped else task.executor
    if ours is None or asked not in (ours, EXECUTOR_CLASSPATH, None):
        return
    if asked is None and hetero_executor_name(re.split("[,;]", core_executor)[0]) is None:
        return  # Airflow's default executor is another one
    name = operator.__name__
    remedy = _OPERATORS.get(name, f"a class that mixes it in, class My{name}(DeviceOperator, {name}), with device=...")
    raise RequestError(
        "executor_config",
        {"device": config["device"]},
        found=f"{name}, which asks for no device",
        remedy=f"Use {remedy} from hetero_airflow.operators",
    )
