"""Code in Airflow's scheduler: the executor, and what it uses to place device tasks and to look after them.

`executor` is what Airflow calls, and `dispatcher` has the steps of a heartbeat. `observer` finds out what has happened
to the runs, the table in `runs` says what follows, and `command_runner` does it. `build` wires all parts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero_airflow.executor.executor import HeteroExecutor

__all__ = ["HeteroExecutor"]


def __getattr__(name: str) -> Any:
    """Import the executor on first use: a worker never needs it."""
    if name == "HeteroExecutor":
        from hetero_airflow.executor.executor import HeteroExecutor

        return HeteroExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
