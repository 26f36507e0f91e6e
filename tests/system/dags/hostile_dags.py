"""A DAG whose device arguments would stop a scheduler that renders them in its loop."""

from airflow.sdk import DAG
from hostile import HOSTILE

from hetero_airflow.operators import DeviceBashOperator

with DAG("hostile", schedule=None):
    for name, template in HOSTILE.items():
        DeviceBashOperator(task_id=name, device=template, bash_command="true", retries=0)
