"""Operators and the ``@task.device`` decorator: tasks that say what devices they need.

The folder stands at the root of the repository and is the package `hetero_airflow.operators`.
"""

if __name__ == "operators":
    raise ImportError("import hetero_airflow.operators instead: a second copy of the classes would appear")

from hetero_airflow.operators.bash import DeviceBashOperator
from hetero_airflow.operators.decorator import device_task
from hetero_airflow.operators.device import DeviceOperator
from hetero_airflow.operators.python import DevicePythonOperator
from hetero_airflow.operators.torchrun import TorchrunOperator

__all__ = ["DeviceBashOperator", "DeviceOperator", "DevicePythonOperator", "TorchrunOperator", "device_task"]
