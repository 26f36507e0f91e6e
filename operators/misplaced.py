"""Refuses a request that stands where nothing reads it, which is what people try first."""

from __future__ import annotations

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

    :param config: the task's ``executor_config``, which has a ``device``
    :raises RequestError: the task would run on this package's executor
    """
    core_executor = conf.get("core", "executor")
    ours = hetero_executor_name(core_executor)
    asked = task.partial_kwargs.get("executor") if task.is_mapped else task.executor
    if ours is None or asked not in (ours, EXECUTOR_CLASSPATH, None):
        return
    if asked is None and EXECUTOR_CLASSPATH not in core_executor.partition(",")[0]:
        return  # Airflow's default executor is another one
    name = (task.operator_class if task.is_mapped else type(task)).__name__
    remedy = _OPERATORS.get(name, f"a class that mixes it in, class My{name}(DeviceOperator, {name}), with device=...")
    raise RequestError(
        "executor_config",
        {"device": config["device"]},
        found=f"a {name}, which asks for no device",
        remedy=f"Use {remedy} from hetero_airflow.operators",
    )
