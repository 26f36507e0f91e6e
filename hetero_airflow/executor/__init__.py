"""Where the plugin drives Airflow: executor, coordinator, configuration, DB manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero_airflow.executor.executor import HeteroExecutor

__all__ = ["HeteroExecutor"]


def __getattr__(name: str) -> Any:
    """Import the executor when it is asked for: a worker that needs the coordinator never loads it."""
    if name == "HeteroExecutor":
        from hetero_airflow.executor.executor import HeteroExecutor

        return HeteroExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
