"""Fifty short tasks, each of which uses its devices under the eyes of the witness."""

from datetime import timedelta

from airflow.sdk import DAG

from hetero_airflow.operators import DevicePythonOperator

TASKS = {"whole": ("gpu", 20), "half": ("gpu:0.5", 16), "npu": ("npu", 14)}
"""Task id → (device, number of mapped tasks)."""


def use(number, params, ti):
    """Hold the devices for as long as the run's parameters say."""
    import time

    from chaos_witness import Witness, leave_daemon

    plan = params["plan"][ti.task_id][number]
    task = [ti.task_id, number, ti.try_number]
    with Witness(params["folder"]).use(task) as files:
        time.sleep(plan["nap_s"])
        if plan["daemon_s"]:
            leave_daemon(plan["daemon_s"], files)


with DAG("sequence", schedule=None, params={"folder": "", "plan": {}}):
    for task_id, (device, count) in TASKS.items():
        DevicePythonOperator.partial(
            task_id=task_id, python_callable=use, device=device, retries=2, retry_delay=timedelta(0)
        ).expand(op_args=[[number] for number in range(count)])
