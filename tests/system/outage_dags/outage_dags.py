"""DAGs whose tasks note when they start; none of them has a retry."""

import os
import time

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from hetero_airflow.operators import DevicePythonOperator
from hetero_airflow.sensors import DeviceAvailableSensor


def use_device(name, seconds):
    with open(f"{os.environ['AIRFLOW_HOME']}/{name}.starts", "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return name


with DAG("before", schedule=None, params={"through_s": 40, "ends_s": 12}, default_args={"retries": 0}):
    for name, device, seconds in (
        ("through", "gpu", "{{ params.through_s }}"),
        ("ends", "gpu", "{{ params.ends_s }}"),
        ("killed", "npu", "{{ params.ends_s }}"),
    ):
        DevicePythonOperator(
            task_id=name,
            python_callable=lambda name, seconds: use_device(name, float(seconds)),
            op_args=[name, seconds],
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
