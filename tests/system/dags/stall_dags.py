"""A DAG whose tasks note each start, and run until a file exists. No task has a retry."""

import os
import time

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from hetero_airflow.operators import DevicePythonOperator


def run_until(name, path):
    with open(f"{path}.{name}.starts", "a") as file:
        file.write(f"{os.getpid()}\n")
    started_at, cpu_s = time.time(), time.process_time()
    while not os.path.exists(path):
        while time.process_time() - cpu_s < (time.time() - started_at) / 5:  # else it counts as hung
            sum(range(1000))
        time.sleep(0.05)


with DAG("stalled", schedule=None, params={"until": ""}, default_args={"retries": 0}):
    options = {"python_callable": run_until}
    PythonOperator(task_id="plain", op_args=["plain", "{{ params.until }}"], **options)
    DevicePythonOperator(task_id="device", device="gpu", op_args=["device", "{{ params.until }}"], **options)
