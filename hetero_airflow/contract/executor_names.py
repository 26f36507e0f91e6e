"""How a configuration names this package's executor and coordinator, and which executor and pool device tasks use."""

from typing import Any

from airflow.sdk.configuration import conf

from hetero_airflow.settings import SECTION, default

EXECUTOR_CLASSPATH = "hetero_airflow.executor.HeteroExecutor"
"""The executor in ``[core] executor``."""

COORDINATOR_NAME = "hetero"
"""The recommended name of the coordinator in ``[sdk] coordinators``."""

COORDINATOR_MODULE = "hetero_airflow.supervisor.coordinator"
COORDINATOR_CLASSPATH = f"{COORDINATOR_MODULE}.DeviceCoordinator"
"""The coordinator in ``[sdk] coordinators``."""


def hetero_executor_name(core_executor: str) -> str | None:
    """The alias or class path that a task needs as ``executor`` to reach ``HeteroExecutor``; None if not configured.

    Executors of single teams, after a semicolon, don't count: Airflow refuses this one there.

    >>> hetero_executor_name("LocalExecutor,devices:hetero_airflow.executor.HeteroExecutor;red=CeleryExecutor")
    'devices'
    """
    for entry in core_executor.partition(";")[0].strip("=").split(","):
        name, _, path = entry.strip().rpartition(":")
        if path == EXECUTOR_CLASSPATH:
            return name or path
    return None


def device_task_defaults() -> dict[str, Any]:
    """Default arguments of a device task: the executor and the pool for device tasks.

    Empty if ``HeteroExecutor`` is not configured. Device tasks then run without placement, as on a laptop.
    """
    name = hetero_executor_name(conf.get("core", "executor"))
    if name is None:
        return {}
    return {"pool": conf.get(SECTION, "pool", fallback=default("pool")), "executor": name}
