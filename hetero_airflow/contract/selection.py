"""Which executor and pool device tasks take, by what the installation has configured."""

from __future__ import annotations

import re
from typing import Any

from airflow.sdk.configuration import conf

from hetero_airflow.settings import SECTION, default

EXECUTOR_CLASSPATH = "hetero_airflow.executor.HeteroExecutor"
"""How ``[core] executor`` names our executor."""


def hetero_executor_name(core_executor: str) -> str | None:
    """What a task must say as ``executor`` to reach ours: its alias or class path, or None if it is not configured.

    >>> hetero_executor_name("LocalExecutor,devices:hetero_airflow.executor.HeteroExecutor")
    'devices'
    """
    for entry in re.split("[,;]", core_executor):
        name, _, path = entry.strip().rpartition("=")[2].rpartition(":")
        if path == EXECUTOR_CLASSPATH:
            return name or path
    return None


def device_task_defaults() -> dict[str, Any]:
    """Arguments of a device task that its author need not give: our executor and the pool for device tasks.

    Empty where our executor is not configured; device tasks run unplaced there, as on a laptop.
    """
    configured = conf.get("core", "executor")
    name = hetero_executor_name(configured)
    if name is None:
        return {}
    pool = conf.get(SECTION, "pool", fallback=default("pool"))
    return {"pool": pool, "executor": name}
