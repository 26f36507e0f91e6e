"""Operators and the ``@task.device`` decorator: tasks that request devices.

The folder stands at the root of the repository and is the package `hetero_airflow.operators`.
"""

if __name__ == "operators":
    raise ImportError("import hetero_airflow.operators instead: a second copy of the classes would appear")

from typing import TYPE_CHECKING, Any

from hetero_airflow.operators.bash import DeviceBashOperator
from hetero_airflow.operators.decorator import device_task, task
from hetero_airflow.operators.device import DeviceOperator
from hetero_airflow.operators.python import DevicePythonOperator
from hetero_airflow.operators.torchrun import TorchrunOperator

if TYPE_CHECKING:
    from hetero_airflow.operators.pod import DevicePodOperator as DevicePodOperator

__all__ = ["DeviceBashOperator", "DeviceOperator", "DevicePythonOperator", "TorchrunOperator", "device_task", "task"]


def __getattr__(name: str) -> Any:
    """Import `DevicePodOperator` on first use, because it needs the provider cncf.kubernetes."""
    if name == "DevicePodOperator":
        from hetero_airflow.operators.pod import DevicePodOperator

        return DevicePodOperator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
