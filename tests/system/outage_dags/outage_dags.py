"""DAGs whose tasks note when they start; none of them has a retry."""

import os
import time

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from hetero_airflow.operators import DevicePythonOperator
from hetero_airflow.sensors import DeviceAvailableSensor


def use_device(name, seconds, until=""):
    """Hold a device for so long, or until the file exists."""
    with open(f"{os.environ['AIRFLOW_HOME']}/{name}.starts", "a") as file:
        file.write(f"{os.getpid()}\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists(until):
        time.sleep(0.1)
    return name


with DAG("before", schedule=None, params={"until": "", "ends_s": 12}, default_args={"retries": 0}):
    for name, device, seconds in (
        ("through", "gpu", "600"),
        ("ends", "gpu", "{{ params.ends_s }}"),
        ("killed", "npu", "{{ params.ends_s }}"),
    ):
        DevicePythonOperator(
            task_id=name,
            python_callable=lambda name, seconds, until: use_device(name, float(seconds), until),
            op_args=[name, seconds, "{{ params.until }}"],
            device=device,
        )

with DAG("during", schedule=None, default_args={"retries": 0}):
    DevicePythonOperator.partial(task_id="use", python_callable=use_device, device="npu").expand(
        op_args=[[f"during-{number}", 1.0] for number in range(4)]
    )
    PythonOperator.partial(task_id="plain", python_callable=use_device).expand(
        op_args=[[f"plain-{number}", 0.5] for number in range(4)]
    )
    DeviceAvailableSensor(task_id="room", device="npu")
