"""Sixty short tasks under the eyes of the witness: fifty use devices, ten use none."""

from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from hetero_airflow.operators import DevicePythonOperator

TASKS = {"whole": ("gpu", 20), "half": ("gpu:0.5", 16), "npu": ("npu", 14), "plain": (None, 10)}
"""Task id → (device, number of mapped tasks)."""


def use(number, params, ti):
    """Hold the devices for as long as the run's parameters say."""
    import time

    from chaos_witness import Witness, leave_daemon, no_lease

    plan = params["plan"][ti.task_id][number]
    task = [ti.task_id, number, ti.try_number]
    lease = no_lease() if ti.task_id == "plain" else None
    with Witness(params["folder"]).use(task, lease) as files:
        time.sleep(plan["nap_s"])
        if plan["daemon_s"] and lease is None:
            leave_daemon(plan["daemon_s"], files)


with DAG("sequence", schedule=None, params={"folder": "", "plan": {}}):
    for task_id, (device, count) in TASKS.items():
        operator, more = (PythonOperator, {}) if device is None else (DevicePythonOperator, {"device": device})
        operator.partial(
            task_id=task_id, python_callable=use, retries=2, retry_delay=timedelta(0), **more
        ).expand(op_args=[[number] for number in range(count)])  # fmt: skip
