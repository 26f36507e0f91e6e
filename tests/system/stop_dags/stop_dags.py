"""Tasks that note each start and each step. None of them has a retry."""

import os
import time

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, task

from hetero_airflow.operators import DevicePythonOperator

STEPS = 60


def note(name, text):
    with open(f"{os.environ['AIRFLOW_HOME']}/{name}.notes", "a") as file:
        file.write(f"{text}\n")


def hold(name):
    """Save nothing, and go on until the test lets it end."""
    note(name, os.getpid())
    while not os.path.exists(f"{os.environ['AIRFLOW_HOME']}/end"):
        time.sleep(0.1)


with DAG("stopped", schedule=None, default_args={"retries": 0}):

    @task.device(device="gpu", priority="high")
    def saves(number):
        from hetero_airflow.runtime import checkpoint

        for step in checkpoint.steps(STEPS, every=10 * STEPS, state={"steps": []}):
            note(f"saves-{number}", step)
            checkpoint.state["steps"].append(step)
            time.sleep(0.2)
        return checkpoint.state["steps"]

    saves.expand(number=[0, 1])
    DevicePythonOperator.partial(task_id="holds", python_callable=hold, device="gpu").expand(
        op_args=[[f"holds-{number}"] for number in range(6)]
    )
    PythonOperator(task_id="plain", python_callable=hold, op_args=["plain"])
